# torchio gives zeros for what it could not read
#
# Half of a compressed NIfTI file, or one whose last read fails with EIO, is a volume of the right
# shape. What could not be read is zero. Expected: an exception, as nibabel raises for the same
# file.
#
# The cause: `torchio/data/io.py:36` asks SimpleITK first, whose reader of compressed NIfTI does
# not compare what zlib gave with what it asked for. nibabel is asked only where SimpleITK raises
# (line 37).

python -c '
import nibabel, numpy as np
values = np.random.default_rng(0).integers(1, 1000, (12, 12, 24)).astype(np.int16)
nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), "x.nii.gz")
content = open("x.nii.gz", "rb").read()
open("half.nii.gz", "wb").write(content[: len(content) // 2])'
python -W error -c '
import torchio
print("half of the file:", int((torchio.ScalarImage("half.nii.gz").data == 0).sum()) > 1000)'
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO:when=32 -P x.nii.gz python -W error -c '
import torchio
data = torchio.ScalarImage("x.nii.gz").data
print("EIO:", int((data == 0).sum()), "of", data.numel(), "voxels are zero")'
python -c '
import nibabel
nibabel.load("half.nii.gz").get_fdata()' 2>&1 | tail -1 | cut -c1-33

# It prints:
# half of the file: True
# EIO: 3456 of 3456 voxels are zero
# EOFError: Compressed file ended b
