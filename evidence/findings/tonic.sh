# tonic's DiskCachedDataset ends the process where the disk is full
#
# tonic 1.7.0, h5py 3.16.0. ENOSPC as it writes a sample to its cache: SIGSEGV, and a torn .hdf5
# file stays. Expected: an OSError, and no file.
#
# The cause: h5py closes an HDF5 file of which nothing more can be written. What helps: write to
# another name, then `os.replace`; a disk with room.

cat > main.py <<'END'
import h5py, numpy as np
import tonic

class Rows:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return np.full((400, 64), index, np.int16), index

tonic.DiskCachedDataset(Rows(), cache_path="cache")[0]
END
code=0
strace -f -o trace.txt -e trace=pwrite64 -e inject=pwrite64:error=ENOSPC:when=2+ python main.py || code=$?
kill -l "$code"
ls cache

# It prints:
# SEGV
# 0_0.hdf5
