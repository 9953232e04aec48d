# HDF5 raises once, and then gives zeros
#
# A read of a contiguous dataset fails with EIO, and h5py raises. The next read through the same
# handle gives zeros, although the disk works again. So a worker that catches the error, or
# persists, trains on zeros. Expected: the data, or the error again.
#
# The cause: HDF5 marks its sieve buffer, which holds what was read last of a contiguous dataset,
# as filled before the read succeeds. What helps: open the file again after an error.

python -c '
import h5py, numpy as np
with h5py.File("x.h5", "w") as file:
    file["x"] = np.full((6, 32, 32), 7, np.uint8)'
strace -f -o trace.txt -e trace=pread64 -e inject=pread64:error=EIO:when=9 -P x.h5 python -c '
import h5py
values = h5py.File("x.h5")["x"]
for attempt in 1, 2:
    try:
        print(values[0, 0, :4])
    except OSError as error:
        print(str(error)[:41])'

# It prints:
# [Errno 5] Can't synchronously read data (
# [0 0 0 0]
