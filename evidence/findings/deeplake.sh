# deeplake gives zeros for what it cannot read
#
# deeplake 4.7.4. The file of a chunk cannot be opened (EIO; the same with EACCES and ENOENT), or
# cannot be read: every row in it comes as zeros. Where half of the file is missing, the rows of
# that half are wrong. Nothing raises. Expected: an error that names the file. Only a chunk that
# does not exist raises, a KeyError.
#
# The cause is in deeplake's own compiled code. What helps: compare a few rows with a checksum.

python -c '
import deeplake, numpy as np
lake = deeplake.create("lake")
lake.add_column("x", deeplake.types.Array("uint8", 1))
lake.append({"x": [np.full(4096, number + 1, np.uint8) for number in range(32)]})
lake.commit()'
chunk=$(find lake -name _deeplake_log -prune -o -type f -print)
cat > main.py <<'END'
import sys
import deeplake

rows = [row["x"] for row in deeplake.open_read_only(sys.argv[1]).pytorch()]
wrong = [row for number, row in enumerate(rows) if (row != number + 1).any()]
zeros = sum(not row.any() for row in wrong)
print(f"{len(wrong)} of {len(rows)} rows are wrong, {zeros} are zeros")
END
for call in openat read; do
    strace -f -o trace.txt -e trace="$call" -e inject="$call":error=EIO -P "$chunk" \
        python main.py lake
done
size=$(stat -c %s "$chunk")
truncate -s $((size / 2)) "$chunk"
python main.py lake | sed 's/, .*//'

# It prints:
# 32 of 32 rows are wrong, 32 are zeros
# 32 of 32 rows are wrong, 32 are zeros
# 17 of 32 rows are wrong
