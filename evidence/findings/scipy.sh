# SciPy takes a failed read for a shorter sound
#
# And a cache makes it last. VITS (`data_utils.py:73-80`, at 2e561ba) saves the spectrum of each
# sound beside it, and loads that in every later run. So one EIO that nobody saw remains in the
# training data for good. Expected: an exception.
#
# The cause: `scipy/io/wavfile.py:516` calls `np.fromfile` and does not compare the length with
# the one in the header. np.fromfile itself does not distinguish a failed read from the end of the
# file.

python -c '
import numpy as np
from scipy.io import wavfile
wavfile.write("x.wav", 8000, np.full(32768, 7, np.int16))'
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO:when=4 -P x.wav python -c '
from scipy.io import wavfile
print(len(wavfile.read("x.wav")[1]), "of 32768")'

# It prints:
# 2026 of 32768
