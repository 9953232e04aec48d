# lmdb reads beyond the end of its file
#
# A file that was cut off opens without complaint, since its first pages are there. Reading the
# others is SIGBUS, which ends the worker. LMDB maps what its first pages promise, and does not
# compare that with the size of the file.

python -c '
import lmdb
store = lmdb.open("x.mdb", subdir=False, lock=False)
with store.begin(write=True) as transaction:
    for number in range(16):
        transaction.put(b"%02d" % number, bytes(4096))'
head -c 70000 x.mdb > half.mdb
code=0
python -c '
import lmdb
store = lmdb.open("half.mdb", subdir=False, lock=False, readonly=True)
with store.begin() as transaction:
    print(sum(len(value) for _, value in transaction.cursor()))' || code=$?
kill -l "$code"

# It prints:
# BUS
