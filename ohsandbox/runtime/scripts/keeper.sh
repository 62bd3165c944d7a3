# The control side of a session: $1 is its private directory, made here. The shell reads its commands from the FIFO
# `in` and reports on the FIFO `out`; both stay open here, so neither end ever finds the other one missing.
# When the host goes away our stdin ends, `in` loses its last writer, and the shell leaves by itself; one that is at
# work does not hear that. It is killed with what it runs in the foreground: nobody waits for that any more. Background
# jobs stay, but those begun under `set +m`, which share the shell's group. On a person's own machine the terminal hangs
# up with the host, so the shell is mostly gone before we look, and what ignores SIGHUP stays, as it does everywhere.
end() {
  read -r l <"/proc/$1/stat" || return 0
  set -- "$1" ${l##*) }   # from $2 on: state, parent, group, session, terminal, the terminal's foreground group
  [ "$5" = "$1" ] || return 0
  kill -KILL "$1"   # proc(5), setsid(2): as a terminal's leader ends, its foreground group is sent SIGHUP
  sleep 2
  kill -KILL "-$1"
  case $7 in "$1" | [!1-9]* | 1) ;; *) kill -KILL "-$7" ;; esac
}
umask 077
[ -d "${1%/*}" ] || mkdir -p "${1%/*}"
mkdir "$1" && mkfifo "$1/in" "$1/out" || exit 98
: >"$1/env"
exec 3<>"$1/out" 4<>"$1/in"
cat <&3 4>&- &
cat >&4 3>&-
kill $!
exec 4>&-
# where only our own tmpfs holds it, the exported environment stays for who goes on with this session
case $1 in /run/ohs/*) n=${1##*/}; [ ! -s "$1/env" ] || mv -f "$1/env" "/run/ohs/${n%-*}.env" ;; esac
if read -r p <"$1/pid" 2>/dev/null; then
  n=0
  while [ $n -lt 10 ] && [ -d "/proc/$p" ]; do
    n=$((n + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
  end "$p" 2>/dev/null
fi
rm -rf "$1"
