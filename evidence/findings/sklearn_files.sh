# scikit-learn's load_files makes a sample of each hidden file and of each interrupted copy
#
# scikit-learn 1.9.1. A file manager leaves `.DS_Store` in a folder, and an interrupted `rsync` or
# download leaves half a file. Each becomes one more document with the label of its folder, and the
# documents behind it move. Expected: hidden files are left out, as `glob` and the shell do.
#
# The cause: `sklearn/datasets/_base.py:283` takes every name of `listdir`, unless
# `allowed_extensions` is passed.

mkdir -p reviews/negative reviews/positive
echo bad > reviews/negative/0.txt
echo good > reviews/positive/0.txt
echo finder > reviews/negative/.DS_Store
echo go > reviews/positive/.1.txt.Xy12Z
python -W ignore -c '
from sklearn.datasets import load_files
loaded = load_files("reviews", shuffle=False)
for content, label in zip(loaded.data, loaded.target):
    print(loaded.target_names[label], content.decode().strip())'

# It prints:
# negative finder
# negative bad
# positive go
# positive good
