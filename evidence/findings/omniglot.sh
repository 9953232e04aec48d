# torchvision's Omniglot numbers its classes as the folder is listed
#
# torchvision 0.28.0. Two folders have the same files, which were written in another order, so tmpfs
# lists them in another order, as another machine may. The same drawing has another label there, so
# a model that was trained elsewhere is wrong about each class. Expected: the same label.
#
# The cause: `list_dir` (`torchvision/datasets/utils.py:149`) does not sort, and
# `torchvision/datasets/omniglot.py:55-64` numbers the characters by their place in its list.
# `ImageFolder` sorts. The MD5 sum is left out here, because it is that of the real archive.

folder=$(mktemp -d -p /dev/shm)
trap 'rm -r "$folder"' EXIT
python -W ignore - "$folder" <<'END'
import sys
from pathlib import Path
from PIL import Image
from torchvision.datasets import Omniglot

Omniglot._check_integrity = lambda self: True
labels = []
for machine, step in ("first", 1), ("second", -1):
    for number in range(4)[::step]:
        base = Path(sys.argv[1], machine, f"omniglot-py/images_background/Latin/character{number:02}")
        base.mkdir(parents=True)
        Image.new("L", (8, 8), number).save(base / f"{number:02}.png")
    dataset = Omniglot(Path(sys.argv[1], machine))
    labels.append({image.getpixel((0, 0)): label for image, label in dataset})
for number in range(4):
    print(f"character{number:02}: label {labels[0][number]}, elsewhere {labels[1][number]}")
END

# It prints:
# character00: label 3, elsewhere 0
# character01: label 2, elsewhere 1
# character02: label 1, elsewhere 2
# character03: label 0, elsewhere 3
