# np.load loses the cause of a failed read
#
# It looks at the length that the header gives, so it does raise, but of a file that is "not fully
# written": the EIO is lost, for the reason that numpy_fromfile.sh gives.

python -c 'import numpy as np; np.save("x.npy", np.zeros(65536, np.uint8))'
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO:when=5 -P x.npy python -c '
import numpy as np
np.load("x.npy")' 2>&1 | tail -1 | grep -o "file seems.*[?]"

# It prints:
# file seems not fully written?
