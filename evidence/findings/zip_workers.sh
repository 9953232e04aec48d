# A zip archive that `__init__` opened is read by all workers through one offset
#
# The class has the way of `ImageFolderDataset` of stylegan2-ada (`training/dataset.py`): it opens
# the archive with the first picture, and `__init__` reads one for its shape. Forked workers then
# share the file offset, and training ends at random by "Bad CRC-32" or "Bad magic number".
# Expected: the pictures. `__getstate__`, which the class has, helps spawned workers only.
#
# What helps: open the archive again where `os.getpid()` has changed.

cat > main.py <<'END'
import zipfile

from torch.utils.data import DataLoader, Dataset

class Folder(Dataset):
    def __init__(self, path):
        self.path, self.zip = path, None
        self.names = self.archive().namelist()
        self.size = len(self[0])

    def archive(self):
        if self.zip is None:
            self.zip = zipfile.ZipFile(self.path)
        return self.zip

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.archive().read(self.names[index])

if __name__ == "__main__":
    with zipfile.ZipFile("x.zip", "w") as archive:
        for number in range(400):
            archive.writestr(f"{number}.bin", bytes([number % 256]) * 20000)
    for _ in range(20):
        try:
            list(DataLoader(Folder("x.zip"), num_workers=3, multiprocessing_context="fork"))
        except (zipfile.BadZipFile, EOFError):
            print("an epoch failed")
            break
END
python -W ignore main.py

# It prints:
# an epoch failed
