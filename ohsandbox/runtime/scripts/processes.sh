# What runs in a session, and how to end it: read from /proc with builtins alone, as the processes' own user.
# Fields of /proc/PID/stat after the name, see proc(5): $1 state, $2 parent, $3 group, $4 session,
# $6 foreground group of the terminal, ${20} start in clock ticks (100 a second for user space on every Linux).

# ohs_stat PID: that line in $ohs_line; fails when the process is gone.
ohs_stat() {
  read -r ohs_line <"/proc/$1/stat" || return
  ohs_line=${ohs_line##*) }
} 2>/dev/null

# ohs_reads PID TTY: whether the process is blocked reading that terminal.
# /proc/PID/syscall needs the right to trace: where a host forbids that (Yama), a process without sockets that
# sleeps in wait_woken can only be reading a terminal.
ohs_reads() {
  ohs_call= ohs_fd= ohs_wait=
  read -r ohs_call ohs_fd _ <"/proc/$1/syscall"
  read -r ohs_wait <"/proc/$1/wchan"
  case $ohs_call,$ohs_wait in
    0,* | 63,*)   # read on x86-64, on arm64
      ohs_fd="/proc/$1/fd/$((ohs_fd))"
      [ "$ohs_fd" -ef "$2" ] || [ "$ohs_fd" -ef /dev/tty ] ;;
    *,*poll* | *,*select*)
      case $(stty -a <"$2") in *-icanon*) return 0 ;; esac
      ohs_plain "$1" ;;   # ash's own `read` polls a canonical terminal
    ,wait_woken | ,n_tty_read) ohs_plain "$1" ;;
    *) return 1 ;;
  esac
} 2>/dev/null

# ohs_plain PID: whether it has nothing open that could be waited for but a terminal: no socket, pipe or eventfd.
ohs_plain() {
  for ohs_fd in "/proc/$1/fd"/*; do
    [ -c "$ohs_fd" ] || [ -f "$ohs_fd" ] || [ -d "$ohs_fd" ] || return 1
  done
}

# ohs_probe SHELL TTY COMMANDS: print idle (the shell waits for its next command), input, busy,
# spins (the shell is through with its command and does not wait) or gone.
ohs_probe() {
  ohs_stat "$1" || { echo gone; return; }
  ohs_shell=$1 ohs_tty=$2 ohs_in=$3
  set -- $ohs_line
  case $1 in Z | X) echo gone; return ;; esac
  ohs_group=$3 ohs_front=$6
  if [ "$ohs_front" = "$ohs_group" ]; then
    read -r ohs_call ohs_fd _ <"/proc/$ohs_shell/syscall"
    read -r ohs_wait <"/proc/$ohs_shell/wchan"
    case $ohs_call,$ohs_wait in
      0,* | 63,*) [ "/proc/$ohs_shell/fd/$((ohs_fd))" -ef "$ohs_in" ] && { echo idle; return; } ;;
      *poll*) echo input; return ;;   # ash's own `read` polls a canonical terminal
      # ash whose saved descriptors a command closed (exec 11>&-) runs on behind that command, and never reads again
      running,*) [ "/proc/$ohs_shell/fd/0" -ef "$ohs_in" ] && { echo spins; return; } ;;
    esac
  fi 2>/dev/null
  for ohs_d in /proc/[0-9]*; do
    ohs_stat "${ohs_d#/proc/}" || continue
    set -- $ohs_line
    [ "$3" = "$ohs_front" ] || continue
    ohs_reads "${ohs_d#/proc/}" "$ohs_tty" && { echo input; return; }
  done
  echo busy
}

# ohs_tidy TTY: the terminal as terminal.sh set it, after a program that may have left it raw.
ohs_tidy() { stty sane -opost -echo <"$1"; }

# ohs_signal SIGNAL SHELL: to the terminal's foreground group.
ohs_signal() {
  ohs_stat "$2" || return
  ohs_sig=$1
  set -- $ohs_line
  kill "-$ohs_sig" "-$6"   # no `--`: busybox does not know it
} 2>/dev/null

# ohs_oom: how many processes the kernel has killed here for want of memory (cgroup v2, then v1; Linux 4.13 on).
ohs_oom() {
  for ohs_f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    while read -r ohs_k ohs_v; do [ "$ohs_k" != oom_kill ] || echo "$ohs_v"; done <"$ohs_f"
  done
} 2>/dev/null

# ohs_ours PID PARENT SESSION: whether a process that began with the command, or after it, belongs to it: by
# session, by descent, by the session's mark in its environment (setsid and nohup keep that), or, where $ohs_private
# says that nobody else lives here, as an orphan without any mark (env -i setsid).
ohs_ours() {
  [ "$3" = "$ohs_session" ] && return
  case $ohs_hit in *" $2 "*) return ;; esac
  grep -qs "$ohs_mark" "/proc/$1/environ" && return
  [ "$ohs_private" = yes ] && [ "$2" = 1 ] && ! grep -qs OHSANDBOX_ "/proc/$1/environ"
}

# ohs_kill SIGNAL SHELL MARK SINCE PRIVATE: signal all that belongs to a command that began in SHELL at the clock tick
# SINCE, and print their ids. Jobs that were there before it stay.
ohs_kill() {
  ohs_sig=$1 ohs_shell=$2 ohs_mark=$3 ohs_since=$4 ohs_private=$5 ohs_hit=' ' ohs_more=yes
  ohs_stat "$2" || return
  set -- $ohs_line
  ohs_session=$4
  while [ "$ohs_more" ]; do
    ohs_more=
    for ohs_d in /proc/[0-9]*; do
      ohs_p=${ohs_d#/proc/}
      case $ohs_hit in *" $ohs_p "*) continue ;; esac
      ohs_stat "$ohs_p" || continue
      set -- $ohs_line
      case $ohs_p in "$ohs_shell" | "$ohs_session") continue ;; esac
      [ "$1" != Z ] && [ "${20}" -ge "$ohs_since" ] || continue
      ohs_ours "$ohs_p" "$2" "$4" && ohs_hit="$ohs_hit$ohs_p " ohs_more=yes
    done
  done
  set -- $ohs_hit
  [ $# = 0 ] || kill -s "$ohs_sig" "$@" 2>/dev/null
  echo "$@"
}

