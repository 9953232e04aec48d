# BasicSR's PairedImageDataset has its pairs in the order of the folder
#
# basicsr 1.4.2. Two folders have the same files, which were written in another order, so tmpfs lists
# them in another order, as another machine may. An index means another pair there, so the validation
# images that a log names by their index are others. Two interrupted copies are a pair, too. Expected:
# the same pairs.
#
# The cause: `paired_paths_from_folder` (`basicsr/data/data_util.py:219-220`) does not sort what
# `os.scandir` lists, and takes files of any suffix. `paths_from_folder` does not sort either.

folder=$(mktemp -d -p /dev/shm)
trap 'rm -r "$folder"' EXIT
python -W ignore - "$folder" <<'END'
import sys
from pathlib import Path
import torchvision.transforms._functional_tensor

sys.modules["torchvision.transforms.functional_tensor"] = torchvision.transforms._functional_tensor
from basicsr.data.data_util import paired_paths_from_folder

for machine, step in ("first", 1), ("second", -1):
    folders = [Path(sys.argv[1], machine, name) for name in ("lq", "gt")]
    for each in folders:
        each.mkdir(parents=True)
        for number in range(3)[::step]:
            (each / f"{number}.png").touch()
        (each / "3.png.part").touch()
    pairs = paired_paths_from_folder([*map(str, folders)], ["lq", "gt"], "{}")
    print(machine, [Path(pair["gt_path"]).name for pair in pairs])
END

# It prints:
# first ['3.png.part', '2.png', '1.png', '0.png']
# second ['3.png.part', '0.png', '1.png', '2.png']
