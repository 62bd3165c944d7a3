# One process after another on one held-open channel.
#
# Input: one line of shell per call, made by worker.py. Output: the process's own streams, then on each stream the
# call's end mark, a word that only the host and this shell know, so that no output can end a call.
# $0 is a secret word too: the message of any shell about a failed exec begins with it.

# ohs_begin: record the running processes, so that ohs_end finds new ones. A glob of /proc forks nothing.
ohs_begin() {
  ohs_why=
  set -- /proc/[0-9]*
  ohs_before=" $* "
}

# ohs_enter DIR: change to DIR, or set $ohs_why to the reason.
ohs_enter() {
  cd -- "$1" 2>/dev/null && return
  if [ -d "$1" ]; then ohs_why=denied; elif [ -e "$1" ]; then ohs_why=file; else ohs_why=missing; fi
  return 1
}

# ohs_dd: whether dd exists; $ohs_no_dd is set if it failed to read this script. `hash -r`, since dash caches the
# location of a program even after it was removed.
ohs_dd() { [ -z "$ohs_no_dd" ] && hash -r && command -v dd >/dev/null; }

# ohs_counts: whether an exact number of bytes can be read from our stdin: only dd does that.
ohs_counts() {
  ohs_dd && return
  ohs_why=uncounted
  return 1
}

# ohs_lacks NAME...: print the names that are not commands here.
ohs_lacks() {
  for ohs_c; do [ "$(command -v "$ohs_c")" ] || echo "$ohs_c"; done
}

# ohs_held: whether a process started since the call began still has our stdout or stderr open. Nothing is redirected
# here: our stderr would be /dev/null then, which half of all daemons have open, and its real holders would not be seen.
[ / -ef / ] 2>/dev/null || ohs_no_ef=1
ohs_held() {
  [ -z "$ohs_no_ef" ] || return 1
  for ohs_p in /proc/[0-9]*; do
    case $ohs_before in *" $ohs_p "*) continue ;; esac
    for ohs_f in "$ohs_p"/fd/*; do
      if [ "$ohs_f" -ef /proc/$$/fd/1 ] || [ "$ohs_f" -ef /proc/$$/fd/2 ]; then return; fi
    done
  done
  return 1
}

# ohs_end MARK STATUS [WORD OWN]: end a call; $ohs_s is its status. 'held' tells the host to retire this worker, whose
# streams another process holds. WORD is the line that follows the call's stdin. If it is not the next line, a part of
# stdin was left unread, and what follows is data, not a call. OWN is 'own' if the body reads stdin itself: then it may
# fail without reading all of it. With 'fed' only a call that was not started may; any other result does not count, as
# after a `dd` that was replaced.
ohs_end() {
  ohs_s=${ohs_why:-$2} ohs_word=$3
  [ -z "$3" ] || IFS= read -r ohs_word
  [ "$ohs_word" = "$3" ] || case $4:$ohs_s in *:[a-z]* | fed:254 | own:[!0]*) ;; *) exit 96 ;; esac   # INPUT_LEFT
  if ohs_held; then ohs_reply=held; else ohs_reply=free; fi
  printf '%s:%s:%s\n' "$1" "$ohs_s" "$ohs_reply"
  printf '%s:%s:%s\n' "$1" "$ohs_s" "$ohs_reply" >&2
  [ "$ohs_word" = "$3" ] || exit
}
