# cv2.imread gives None for whatever else happens to the file

python -c '
import cv2, numpy as np
cv2.imwrite("x.png", np.zeros((256, 256), np.uint8))'
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO -P x.png python -c '
import cv2
print(cv2.imread("x.png"))'

# It prints:
# None
