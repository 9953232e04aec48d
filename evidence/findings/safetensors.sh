# safetensors calls every failed open a missing file
#
# EIO, EMFILE and EACCES all become `FileNotFoundError`.
# <https://github.com/safetensors/safetensors/issues/805> reports EACCES.

python -c '
import numpy as np, safetensors.numpy
safetensors.numpy.save_file({"x": np.zeros(16)}, "x.safetensors")'
strace -f -o trace.txt -e trace=openat -e inject=openat:error=EIO -P x.safetensors python -c '
import safetensors.numpy
safetensors.numpy.load_file("x.safetensors")' 2>&1 | tail -1

# It prints:
# FileNotFoundError: No such file or directory: x.safetensors
