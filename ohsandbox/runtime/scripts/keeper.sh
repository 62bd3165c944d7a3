# The control side of a session: $1 is its private directory, made here. The shell reads its commands from the FIFO
# `in` and reports on the FIFO `out`; both stay open here, so neither end ever finds the other one missing.
# When the host goes away our stdin ends, `in` loses its last writer, and the shell leaves by itself.
umask 077
[ -d "${1%/*}" ] || mkdir -p "${1%/*}"
mkdir "$1" && mkfifo "$1/in" "$1/out" || exit 98
: >"$1/env"
exec 3<>"$1/out" 4<>"$1/in"
cat <&3 4>&- &
cat >&4 3>&-
kill $!
# where only our own tmpfs holds it, the exported environment stays for who goes on with this session
case $1 in /run/ohs/*) n=${1##*/}; [ ! -s "$1/env" ] || mv -f "$1/env" "/run/ohs/${n%-*}.env" ;; esac
rm -rf "$1"
