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

# ohs_dd: whether there is a dd; $ohs_no_dd says that the one there is could not even read this script. dash believes
# for ever that a program is where it was once found.
ohs_dd() { [ -z "$ohs_no_dd" ] && hash -r && command -v dd >/dev/null; }

# ohs_counts: whether as many bytes as we are told can be taken from our input, and no more: dd alone does that.
ohs_counts() {
  ohs_dd && return
  ohs_why=uncounted
  return 1
}

# ohs_lacks NAME...: print those that are no command here.
ohs_lacks() {
  for ohs_c; do [ "$(command -v "$ohs_c")" ] || echo "$ohs_c"; done
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

# ohs_end MARK STATUS [WORD OWN]: the end of a call; $ohs_s is how it ended. 'held' tells the host to leave this worker to
# the one who holds it. WORD is the line that follows the call's stdin. Where it does not come, a part of that was left
# unread: data, and no next call. OWN is 'own' or 'fed': a body that read it itself may say why it failed; otherwise only
# a call that was not begun may leave it, and any other result is none, as of a `dd` that somebody has replaced.
ohs_end() {
  ohs_s=${ohs_why:-$2} ohs_word=$3
  [ -z "$3" ] || IFS= read -r ohs_word
  [ "$ohs_word" = "$3" ] || case $4:$ohs_s in *:[a-z]* | fed:254 | own:[!0]*) ;; *) exit 96 ;; esac   # INPUT_LEFT
  if ohs_held; then ohs_reply=held; else ohs_reply=free; fi 2>/dev/null
  printf '%s:%s:%s\n' "$1" "$ohs_s" "$ohs_reply"
  printf '%s:%s:%s\n' "$1" "$ohs_s" "$ohs_reply" >&2
  [ "$ohs_word" = "$3" ] || exit
}
