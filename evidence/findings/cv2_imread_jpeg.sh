# cv2.imread decodes what came, and fills in the rest
#
# A JPEG whose read fails in the middle, and one that ends too early, come as a picture of the
# right size. The missing part is grey, and a warning goes to the standard error.
#
# The cause: at the end of its input libjpeg warns, and goes on as if the picture ended there.
# OpenCV ignores the warning, and does not distinguish a failed read from the end. That is known
# for files which are cut off: <https://github.com/opencv/opencv/issues/6468>,
# <https://github.com/opencv/opencv/issues/17862>. Pillow raises in both cases. Reading the bytes
# in Python and decoding them with `cv2.imdecode` brings the EIO to light, but not the missing
# end.

python -c '
import cv2, numpy as np
cv2.imwrite("x.jpg", np.random.default_rng(0).integers(0, 256, (256, 256), np.uint8))'
cp x.jpg good.jpg
head -c 20000 x.jpg > half.jpg
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO:when=5 -P x.jpg python -c '
import cv2, numpy as np
good = cv2.imread("good.jpg", cv2.IMREAD_GRAYSCALE)
for name in "x.jpg", "half.jpg":
    data = cv2.imread(name, cv2.IMREAD_GRAYSCALE)
    print(data.shape, np.array_equal(data, good))'

# It prints:
# (256, 256) False
# (256, 256) False
