# soundfile takes a sound for empty
#
# When the four bytes cannot be read that hold the length, the sound has no samples. When the end
# of the file is missing, the sound is shorter. Neither raises. A read that fails elsewhere
# raises, but of a file in a wrong format.

python -c '
import numpy as np, soundfile
soundfile.write("x.wav", np.zeros(32768), 16000)'
head -c 32768 x.wav > half.wav
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO:when=11 -P x.wav python -c '
import soundfile
print(len(soundfile.read("x.wav")[0]), len(soundfile.read("half.wav")[0]))'
strace -f -o trace.txt -e trace=read -e inject=read:error=EIO:when=1 -P x.wav python -c '
import soundfile
soundfile.read("x.wav")' 2>&1 | tail -1

# It prints:
# 0 16362
# soundfile.LibsndfileError: Error opening 'x.wav': Format not recognised.
