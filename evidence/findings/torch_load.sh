# torch.load calls a short file an invalid argument

python -c '
import os, torch
torch.save(torch.zeros(16384), "x.pt")
os.truncate("x.pt", 32768)
torch.load("x.pt")' 2>&1 | tail -1

# It prints:
# OSError: [Errno 22] Invalid argument
