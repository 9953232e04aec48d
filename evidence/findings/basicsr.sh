# BasicSR gives another picture
#
# RealESRGAN's dataset tries another file after an error, but keeps no record of it. It draws the
# other file by `random.randint(0, len(self))`, which can be one too many. If the error stays, the
# exception is about a variable. Expected: the `OSError`, or an index that exists.
#
# The cause: `basicsr/data/realesrgan_dataset.py:96-107`. The bounds of `randint` (line 100)
# include both ends, and after the last try line 107 uses `img_bytes`, which no try has set.
# `realesrgan_paired_dataset.py` does not have this loop. jepa
# (`src/datasets/video_dataset.py:161-166`, at 51c59d5) does the same without an end: while no
# video could be loaded, it takes a random other one. With all files unreadable the loop never
# ends. deep-text-recognition-benchmark (`dataset.py:200` and `:245`, at e2117f2) gives a black
# picture for any `IOError`.

cat > realesrgan.py <<'END'
import logging, random, sys
import torchvision.transforms.functional as functional
sys.modules["torchvision.transforms.functional_tensor"] = functional  # Its old name.
from PIL import Image
from basicsr.data.realesrgan_dataset import RealESRGANDataset

logging.disable()
names = [f"{number:02}.png" for number in range(16)]
for number, name in enumerate(names):
    Image.new("RGB", (400, 400), (number,) * 3).save(name)
open("list.txt", "w").write("\n".join(names))
blur = {"kernel_list": ["iso"], "kernel_prob": [1], "blur_sigma": [1, 2], "sinc_prob": 0,
        "betag_range": [1, 2], "betap_range": [1, 2], "blur_kernel_size": 21}
dataset = RealESRGANDataset({
    **blur, **{f"{name}2": value for name, value in blur.items()}, "final_sinc_prob": 0,
    "dataroot_gt": ".", "meta_info": "list.txt", "use_hflip": False, "use_rot": False,
    "io_backend": {"type": "disk"}})

class Failing:
    def __init__(self, times):
        self.times = times

    def get(self, path, key):
        self.times -= 1
        if self.times >= 0:
            raise OSError(5, "Input/output error")
        return open(path, "rb").read()
END
python -W ignore -c '
from realesrgan import Failing, dataset, random
random.seed(0)
dataset.file_client = Failing(times=1)
print("asked for 0, got", round(float(dataset[0]["gt"].mean()) * 255))
dataset.file_client = Failing(times=3)
try:
    dataset[0]
except UnboundLocalError as error:
    print(type(error).__name__)
random.randint = lambda low, high: high
dataset.file_client = Failing(times=1)
try:
    dataset[0]
except IndexError as error:
    print(error)'

# It prints:
# asked for 0, got 12
# UnboundLocalError
# list index out of range
