# soundfile's error loses its text on the way out of a worker
#
# soundfile 0.14.0. In a worker, torch keeps the text of an exception, and makes the exception anew
# in the main process, by its class and that text. `LibsndfileError` takes any first argument as
# its code, and its `__str__` then raises TypeError. So a log or a traceback shows `<exception str()
# failed>`, and neither the path nor the reason. Expected: the text.
#
# The cause: `LibsndfileError.__init__` (`soundfile.py:1687`) takes a string, and `error_string`
# passes it to C. torch falls back to a RuntimeError with the text if `__init__` raises. What helps:
# catch it in the dataset, and `raise OSError(path) from error`.

cat > main.py <<'END'
import soundfile
from torch.utils.data import DataLoader, Dataset

class Sounds(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return soundfile.read("x.wav")

for workers in 0, 1:
    try:
        next(iter(DataLoader(Sounds(), num_workers=workers)))
    except soundfile.LibsndfileError as error:
        try:
            print(str(error))
        except TypeError as second:
            print("str(error) raises TypeError:", second)
END
python main.py

# It prints:
# Error opening 'x.wav': System error.
# str(error) raises TypeError: an integer is required
