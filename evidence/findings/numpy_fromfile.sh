# np.fromfile gives memory for what it could not read
#
# The read fails with EIO. Without `count` the array has its full length, and what is in it is
# whatever was in that memory before. With `count` it is empty. Neither raises.
#
# The cause: NumPy calls fread(3) and compares what came with the `count` it was asked for.
# Without one, that is -1, and no number is less. NumPy does not call ferror(3), which
# distinguishes a failed read from the end of the file. What helps:
# `np.frombuffer(Path(path).read_bytes(), dtype)`.

head -c 65536 /dev/urandom > x.bin
cp x.bin good.bin
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO -P x.bin python -c '
import numpy as np
data, good = np.fromfile("x.bin", np.uint8), np.fromfile("good.bin", np.uint8)
print(data.shape, np.array_equal(data, good))
print(np.fromfile("x.bin", np.uint8, count=65536).shape)'

# It prints:
# (65536,) False
# (0,)
