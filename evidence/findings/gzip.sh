# gzip takes an empty file for an empty archive
#
# The program of that name does not.

: > x.gz
python -c 'import gzip; print(gzip.open("x.gz").read())'
gzip -t x.gz 2>&1 | tail -1

# It prints:
# b''
# gzip: x.gz: unexpected end of file
