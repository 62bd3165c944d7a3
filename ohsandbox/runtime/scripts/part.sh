# Of file $1: its size, a newline, its first 8 KiB, and of $3 lines from line $2 on the first $4 bytes. None of these
# programs holds a whole line, which may be all of the file.
set -f
set -- "$@" $(LC_ALL=C ls -Lnd -- "$1")
echo "$9"
head -c 8192 "$1"
tail -n "+$2" "$1" | head -n "$3" | head -c "$4"
