# The control side of a session: $1 is its private directory, made here. The shell reads its commands from the FIFO
# `in` and reports on the FIFO `out`; both stay open here, so neither end ever finds the other one missing.
# When the host process ends, our stdin ends, `in` loses its last writer, and an idle shell exits by itself. A busy one
# is killed together with its foreground processes, since nobody waits for them. Background jobs are kept, except those
# started under `set +m`, which share the shell's process group. Without a container the terminal hangs up with the
# host process, so the shell has usually exited before we look, and processes that ignore SIGHUP are kept.
end_shell() {
  read -r l <"/proc/$1/stat" || return 0
  set -- "$1" ${l##*") "}   # from $2 on: state, parent, group, session, terminal, the terminal's foreground group
  [ "$5" = "$1" ] || return 0
  kill -KILL "$1"   # proc(5), setsid(2): as a terminal's leader ends, its foreground group is sent SIGHUP
  sleep 2
  kill -KILL "-$1"
  case $7 in "$1" | [!1-9]* | 1) ;; *) kill -KILL "-$7" ;; esac
}
# ohs_own DIRECTORY: whether it is still ours. Once a command has removed it, another user may have taken its name.
ohs_own() { [ -O "$1" ] && [ ! -L "$1" ]; }
umask 077
[ -d "${1%/*}" ] || mkdir -p "${1%/*}"
mkdir "$1" || exit 98
# a command may remove any name (`rm -rf /run/*`): what is needed later is open here, or session.sh makes it again
: >"$1/env" >"$1/pid"
exec 5<"$1/pid"
echo $$ >"$1/keeper"
mkfifo "$1/in" "$1/out" || exit 98
exec 3<>"$1/out" 4<>"$1/in"
trap '' HUP INT TERM   # `pkill cat` does not mean these
{ exec cat <&3 4>&-; } &   # yash kills only its own child, without the exec
cat >&4   # without `3>&-`, for which some shells move their own descriptor 3 meanwhile
kill -KILL $!
exec 4>&-
# only in our own tmpfs: keep the exported environment for a process that resumes this session
n=${1##*/} l=/run/ohs/${1##*/}
l=${l%-*}.env   # a directory of that name would take it in
case $1 in /run/ohs/"$n") [ ! -s "$1/env" ] || [ -d "$l" ] || ! ohs_own "$1" || mv -f "$1/env" "$l" ;; esac
if read -r p <&5; then
  n=0
  while [ $n -lt 10 ] && [ -d "/proc/$p" ]; do
    n=$((n + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
  end_shell "$p" 2>/dev/null
fi
! ohs_own "$1" || rm -rf "$1"
