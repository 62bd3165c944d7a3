# One process after another on one held-open channel.
#
# In: a line of shell a call, made by worker.py. Out: the process's own streams, and then on each of them the
# call's end mark, a word that only the host and this shell know, so that no output can end a call.
# $0 is a secret word too: what this shell itself has to say about a failed exec begins with it, on any shell.

# ohs_begin: remember who runs, so that ohs_end knows who came since. A glob of /proc forks nothing.
ohs_begin() {
  ohs_why=
  set -- /proc/[0-9]*
  ohs_before=" $* "
}

# ohs_enter DIR: go there, or say in $ohs_why why not.
ohs_enter() {
  cd -- "$1" 2>/dev/null && return
  if [ -d "$1" ]; then ohs_why=denied; elif [ -e "$1" ]; then ohs_why=file; else ohs_why=missing; fi
  return 1
}

# ohs_held: whether a process that came since the call began still has one of our two streams open.
ohs_held() {
  for ohs_p in /proc/[0-9]*; do
    case $ohs_before in *" $ohs_p "*) continue ;; esac
    for ohs_f in "$ohs_p"/fd/*; do
      if [ "$ohs_f" -ef /proc/$$/fd/1 ] || [ "$ohs_f" -ef /proc/$$/fd/2 ]; then return; fi
    done
  done
  return 1
}

# ohs_end MARK STATUS: the end of a call. 'held' tells the host to leave this worker to the one who holds it.
ohs_end() {
  if ohs_held; then ohs_reply=held; else ohs_reply=free; fi 2>/dev/null
  printf '%s:%s:%s\n' "$1" "${ohs_why:-$2}" "$ohs_reply"
  printf '%s:%s:%s\n' "$1" "${ohs_why:-$2}" "$ohs_reply" >&2
}
