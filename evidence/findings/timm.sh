# timm gives the next picture, and then an error without a cause
#
# In place of a picture that cannot be read comes the next one, with its own label, and a line in
# the log. After ten of them a `RuntimeError` comes that names neither a file nor an error. That
# the next picture comes is meant. That the error has no cause is not: expected is `raise ... from
# e`.
#
# The cause: `timm/data/dataset.py:66-70`. The `else` of the loop runs after the `except` block
# has ended, so there is no error left to chain.

mkdir -p pictures/cat
python -W ignore -c '
import os
from PIL import Image
from timm.data import ImageDataset
for number in range(12):
    Image.new("RGB", (8, 8), (number,) * 3).save(f"pictures/cat/{number:02}.png")
dataset = ImageDataset("pictures")
os.truncate("pictures/cat/03.png", 0)
print("asked for 3, got", dataset[3][0].getpixel((0, 0))[0])
for number in range(12):
    os.truncate(f"pictures/cat/{number:02}.png", 0)
try:
    dataset[3]
except RuntimeError as error:
    print(error, error.__cause__, error.__context__)' 2> log.txt
grep -c "Skipped sample" log.txt

# It prints:
# asked for 3, got 4
# Failed to load 10 consecutive samples None None
# 11
