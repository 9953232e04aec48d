# A cache that is written in place can be torn
#
# `torch.save` writes straight to the name that it is given. A worker that is killed there leaves
# a file that exists and cannot be loaded. VITS (`data_utils.py:80` and `:218`) and others then
# fail in every later run, since they look only whether the file exists. Expected of a cache:
# write to another name, then `os.replace`.

strace -f -o trace.txt -e trace=write -e inject=write:signal=KILL:when=1 -P "$PWD/x.pt" python -c '
import torch
torch.save(torch.zeros(65536), "x.pt")' || true
python -c '
import torch
torch.load("x.pt")' 2>&1 | tail -1 | cut -c1-56

# It prints:
# RuntimeError: PytorchStreamReader failed reading zip arc
