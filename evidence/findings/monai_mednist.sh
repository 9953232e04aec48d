# MONAI's MedNISTDataset splits the same files differently on another machine
#
# monai 1.6.1. Two folders have the same 40 files, which were written in another order, so tmpfs
# lists them in another order, as another machine may. With the same seed, most images that one
# folder has for validation are in the training section of the other: a model that goes on training
# elsewhere sees them. Expected: the same sections.
#
# The cause: `monai/apps/datasets.py:164` draws positions in `iterdir()`, which is not sorted. The
# names of the classes, two lines above, are. What helps: sort `iterdir()`.

folder=$(mktemp -d -p /dev/shm)
trap 'rm -r "$folder"' EXIT
python -W ignore - "$folder" 2> log.txt <<'END'
import sys
from pathlib import Path
from monai.apps import MedNISTDataset

def names(machine, section):
    dataset = MedNISTDataset(machine, section, str, cache_rate=0, val_frac=0.25, test_frac=0.25)
    return {Path(row["image"]).name for row in dataset.data}

first, second = Path(sys.argv[1], "first"), Path(sys.argv[1], "second")
for machine, step in (first, 1), (second, -1):
    (machine / "MedNIST/Hand").mkdir(parents=True)
    for number in range(40)[::step]:
        (machine / f"MedNIST/Hand/{number:02}.jpeg").touch()
assert not names(first, "validation") & names(first, "training")
validation, training = names(first, "validation"), names(second, "training")
print(f"{len(validation)} for validation, {len(validation & training)} of them for training elsewhere")
END

# It prints:
# 10 for validation, 7 of them for training elsewhere
