# supervision's DetectionDataset has its images in the order of the folder
#
# supervision 0.31.2. Two folders have the same files, which were written in another order, so tmpfs
# lists them in another order, as another machine may. An index, and so `random_split` with the same
# seed, means another image there. Expected: the same image; `ClassificationDataset` sorts.
#
# The cause: `list_files_with_extensions` (`supervision/utils/file.py:162`) does not sort.

folder=$(mktemp -d -p /dev/shm)
trap 'rm -r "$folder"' EXIT
python -W ignore - "$folder" <<'END'
import sys
from pathlib import Path
import numpy as np
import supervision
from PIL import Image

for machine, step in ("first", 1), ("second", -1):
    root = Path(sys.argv[1], machine)
    for name in "images", "labels":
        (root / name).mkdir(parents=True)
    (root / "data.yaml").write_text("names: [cat]\nnc: 1\n")
    for number in range(4)[::step]:
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(root / f"images/{number}.png")
        (root / f"labels/{number}.txt").write_text("0 0.5 0.5 0.25 0.25\n")
    dataset = supervision.DetectionDataset.from_yolo(str(root / "images"), str(root / "labels"), str(root / "data.yaml"))
    print(machine, [Path(path).stem for path, _, _ in dataset])
END

# It prints:
# first ['3', '2', '1', '0']
# second ['0', '1', '2', '3']
