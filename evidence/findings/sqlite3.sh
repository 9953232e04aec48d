# sqlite3 calls a failed read a malformed database
#
# Of the first reads it says "disk I/O error", of most others that the file is damaged, which it
# is not.

python -c '
import sqlite3
with sqlite3.connect("x.db") as store:
    store.execute("create table records (data blob)")
    store.executemany("insert into records values (?)", [(bytes(4096),)] * 16)'
strace -f -o trace.txt -e trace=pread64 -e inject=pread64:error=EIO:when=3+ -P x.db python -c '
import sqlite3
list(sqlite3.connect("x.db").execute("select data from records"))' 2>&1 | tail -1

# It prints:
# sqlite3.DatabaseError: database disk image is malformed
