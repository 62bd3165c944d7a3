# Inspect and signal the processes of a session: reads /proc with builtins only, as the user of the processes.
# Fields of /proc/PID/stat after the name, see proc(5): $1 state, $2 parent, $3 group, $4 session,
# $6 foreground group of the terminal, ${20} start in clock ticks (100 a second for user space on every Linux).

# ohs_stat PID: that line in $ohs_line; fails when the process is gone.
ohs_stat() {
  read -r ohs_line <"/proc/$1/stat" || return
  ohs_line=${ohs_line##*") "}
} 2>/dev/null

# ohs_reads PID TTY OWN: whether the process is blocked reading that terminal. OWN is empty if that may not be the terminal
# that it has as /dev/tty.
# /proc/PID/syscall needs the right to trace: where a host forbids that (Yama), a process without sockets that
# sleeps in wait_woken can only be reading a terminal.
ohs_reads() {
  ohs_call= ohs_fd= ohs_wait=
  read -r ohs_call ohs_fd _ <"/proc/$1/syscall"
  read -r ohs_wait <"/proc/$1/wchan"
  case $ohs_call,$ohs_wait in
    0,* | 63,*)   # read on x86-64, on arm64
      ohs_fd="/proc/$1/fd/$((ohs_fd))"
      [ "$ohs_fd" -ef "$2" ] || { [ "$3" ] && [ "$ohs_fd" -ef /dev/tty ]; } ;;
    *,*poll* | *,*select*)
      [ "$3" ] || [ "/proc/$1/fd/0" -ef "$2" ] || return 1
      case $(stty -a <"$2") in *-icanon*) return 0 ;; esac
      ! ohs_looks "$1" || return 1
      ohs_plain "$1" ;;   # ash's own `read` polls a canonical terminal
    ,wait_woken | ,n_tty_read) [ "$3" ] && ohs_plain "$1" ;;
    *) return 1 ;;
  esac
} 2>/dev/null

# ohs_looks PID: whether its poll has a time limit: it looks at its input now and then, and does not wait for it.
# The calls' numbers on x86-64, then on arm64.
ohs_looks() {
  read -r ohs_call _ _ ohs_3 ohs_4 ohs_5 _ <"/proc/$1/syscall"
  case $ohs_call in
    7) [ "$ohs_3" != 0xffffffff ] && [ "$ohs_3" != 0xffffffffffffffff ] ;;   # poll: milliseconds, or -1
    232 | 281 | 22) [ "$ohs_4" != 0xffffffff ] && [ "$ohs_4" != 0xffffffffffffffff ] ;;   # epoll_wait, epoll_pwait
    271 | 73) [ "$ohs_3" != 0x0 ] ;;   # ppoll: the address of a time
    23 | 270 | 72) [ "$ohs_5" != 0x0 ] ;;   # select, pselect6
    *) return 1 ;;
  esac
} 2>/dev/null

# ohs_plain PID: whether the only open descriptors it could wait for are terminals: no socket, pipe or eventfd.
ohs_plain() {
  for ohs_fd in "/proc/$1/fd"/*; do
    [ -c "$ohs_fd" ] || [ -f "$ohs_fd" ] || [ -d "$ohs_fd" ] || return 1
  done
}

# ohs_asks GROUP TTY SHELL: print input if a process of the group, or a younger one below it (`su -c` makes a session of
# its own), reads that terminal; busy if not; the group, the terminal and user ids if other users have such processes.
# Nothing is looked for below the shell itself: its jobs are not in front. A parent's id is the lower one: the ids are
# gone through by their length, since a glob sorts them as text.
ohs_asks() {
  ohs_front=$1 ohs_tty=$2 ohs_shell=$3 ohs_members=' ' ohs_users=' ' ohs_n=
  for ohs_c in 1 2 3 4 5 6 7; do   # digits; pid_max is at most 4,194,304 (proc(5))
    ohs_n="${ohs_n}[0-9]"
    for ohs_d in /proc/$ohs_n; do
      ohs_p=${ohs_d#/proc/} ohs_own=
      ohs_stat "$ohs_p" || continue
      set -- $ohs_line
      if [ "$3" = "$ohs_front" ]; then ohs_own=yes; else case $ohs_members in *" $2 "*) ;; *) continue ;; esac; fi
      [ "$ohs_p" = "$ohs_shell" ] || ohs_members="$ohs_members$ohs_p "
      ohs_reads "$ohs_p" "$ohs_tty" "$ohs_own" && { echo input; return; }
      [ "$ohs_call" ] || [ -O "$ohs_d" ] || ohs_user "$ohs_p"
    done
  done
  if [ "$ohs_users" = ' ' ]; then echo busy; else echo "$ohs_front $(readlink -f "$ohs_tty")$ohs_users"; fi
} 2>/dev/null

# ohs_user PID: add its effective user id to $ohs_users.
ohs_user() {
  while read -r ohs_k _ ohs_v _; do
    case $ohs_k:$ohs_users in Uid:*" $ohs_v "*) ;; Uid:*) ohs_users="$ohs_users$ohs_v " ;; esac
  done <"/proc/$1/status"
}

# ohs_probe SHELL TTY COMMANDS: print idle (the shell waits for its next command), input, busy,
# spins (the shell is through with its command and does not wait), gone, or what ohs_asks prints of other users.
ohs_probe() {
  ohs_stat "$1" || { echo gone; return; }
  ohs_shell=$1 ohs_tty=$2 ohs_in=$3
  set -- $ohs_line
  case $1 in
    Z | X) echo gone; return ;;
    T) kill -CONT "$ohs_shell" ;;   # only we continue a session's shell that was stopped
  esac 2>/dev/null
  ohs_group=$3 ohs_front=$6
  if [ "$ohs_front" = "$ohs_group" ]; then
    read -r ohs_call ohs_fd _ <"/proc/$ohs_shell/syscall"
    read -r ohs_wait <"/proc/$ohs_shell/wchan"
    case $ohs_call,$ohs_wait in
      0,* | 63,*)
        ohs_fd="/proc/$ohs_shell/fd/$((ohs_fd))"
        # if its FIFO was deleted, no report comes either
        if [ "$ohs_fd" -ef "$ohs_in" ] || { [ -p "$ohs_fd" ] && [ ! -p "$ohs_in" ]; }; then echo idle; return; fi ;;
      *poll*)   # ash's own `read` polls a canonical terminal; yash waits so for its next command, too
        [ "/proc/$ohs_shell/fd/0" -ef "$ohs_in" ] && { echo idle; return; }
        ohs_looks "$ohs_shell" || { echo input; return; } ;;
      # ash whose saved descriptors a command closed (exec 11>&-) runs on behind that command, and never reads again
      running,*) [ "/proc/$ohs_shell/fd/0" -ef "$ohs_in" ] && { echo spins; return; } ;;
    esac
  fi 2>/dev/null
  ohs_asks "$ohs_front" "$ohs_tty" "$ohs_shell"
}

# ohs_replaced SHELL COMMANDS: print the program that a command put in the shell's place by `exec`: it has the shell's
# process, but not the FIFO of its commands.
ohs_replaced() {
  for ohs_fd in "/proc/$1/fd"/*; do
    [ -e "$ohs_fd" ] && [ "$ohs_fd" -ef "$2" ] && return
  done
  read -r ohs_c <"/proc/$1/comm" && printf '%s\n' "$ohs_c"
} 2>/dev/null

# ohs_tidy TTY: restore the terminal mode of terminal.sh, after a program that may have left it raw.
ohs_tidy() { stty sane -opost -echo <"$1"; }

# ohs_ask KEEPER DIRECTORY RECORD: have the session's keeper pass on the record, behind all that the shell has reported,
# and print asked; print alive or gone, what the keeper is.
ohs_ask() {
  ohs_c=
  read -r ohs_c <"/proc/$1/cmdline"
  case $ohs_c in
    *"$2"*) printf '%s\000' "$3" >"/proc/$1/fd/3" && echo asked; echo alive ;;
    *) [ ! -d /proc/self ] || echo gone ;;
  esac
} 2>/dev/null

# ohs_signal SIGNAL SHELL: signal the terminal's foreground process group; fails where that is unknown (gVisor: 0).
ohs_signal() {
  ohs_stat "$2" || return
  ohs_sig=$1
  set -- $ohs_line
  [ "$6" != 0 ] || return 3
  kill "-$ohs_sig" "-$6"   # no `--`: busybox does not know it
} 2>/dev/null

# ohs_front SHELL: print the terminal's foreground process group.
ohs_front() {
  ohs_stat "$1" || return
  set -- $ohs_line
  echo "$6"
}

# ohs_mortal PID: whether an interrupt would end it: it runs, and neither catches, ignores nor blocks SIGINT.
ohs_mortal() {
  while read -r ohs_k ohs_v _; do
    case $ohs_k,$ohs_v in
      State:,[TtZX]* | Sig[BIC]*,*[2367abef]) return 1 ;;   # SIGINT is bit 1 of SigBlk, SigIgn, SigCgt
    esac
  done <"/proc/$1/status"
}

# ohs_insist SHELL TTY COMMANDS GROUP: the terminal has sent SIGINT to GROUP; send it again if it was lost. Between two
# commands of a list it may reach a process that has just ended, or a forked shell before its exec.
ohs_insist() {
  ohs_shell=$1 ohs_tty=$2 ohs_in=$3 ohs_group=$4 ohs_tries=0
  case $(stty -a <"$2") in *-isig*) return ;; esac
  while [ $ohs_tries -lt 10 ]; do
    ohs_tries=$((ohs_tries + 1))
    sleep 0.02 || return
    ohs_stat "$ohs_shell" || return
    set -- $ohs_line
    [ "$6" != 0 ] || return
    if [ "$6" = "$3" ]; then
      case $(ohs_probe "$ohs_shell" "$ohs_tty" "$ohs_in") in idle | input | gone) return ;; esac
      kill -INT "$ohs_shell"
    elif [ "$6" = "$ohs_group" ]; then
      ohs_outlived "$6"
      case $? in 0) kill -INT "-$6" ;; 2) return ;; esac
    else
      ohs_group=$6
      kill -INT "-$6"
    fi
  done
} 2>/dev/null

# ohs_outlived GROUP: 2 if a program of the group handles the interrupt itself; 0 if a process lives that the interrupt
# would have ended; 1 if there is no process of a program: the shell forks before exec, and its child still has the
# shell's command line.
ohs_outlived() {
  ohs_wanted=$1 ohs_found=1 ohs_own=
  read -r ohs_own <"/proc/$ohs_shell/cmdline"
  for ohs_d in /proc/[0-9]*; do
    ohs_stat "${ohs_d#/proc/}" || continue
    set -- $ohs_line
    [ "$3" = "$ohs_wanted" ] || continue
    case $1 in Z | X) continue ;; esac
    if ohs_mortal "${ohs_d#/proc/}"; then ohs_found=0; continue; fi
    ohs_c=
    read -r ohs_c <"$ohs_d/cmdline"
    [ "$ohs_c" = "$ohs_own" ] || return 2
  done
  return $ohs_found
} 2>/dev/null

# ohs_oom: print the number of processes that the OOM killer has killed here, and the limit of memory in bytes (cgroup
# v2, then v1; Linux 4.13 on).
ohs_oom() {
  ohs_x=0   # Linux before 4.13 says nothing of it in cgroup v1
  for ohs_f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    while read -r ohs_k ohs_v; do [ "$ohs_k" != oom_kill ] || ohs_x=$ohs_v; done <"$ohs_f"
  done
  echo "$ohs_x"
  for ohs_f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    read -r ohs_v <"$ohs_f" && echo "$ohs_v"
  done
} 2>/dev/null

# ohs_written SKIPPED: for each process but that and us: its id; the bytes that its first thread has written to disks, and
# those that all of it and its reaped children have written, to disks and by calls (proc(5)), or ? where we may not know; the
# ticks that it and they spent in the kernel; its user and group; its name.
ohs_written() {
  ohs_skipped=$1
  for ohs_d in /proc/[1-9]*; do
    ohs_p=${ohs_d#/proc/} ohs_n= ohs_u= ohs_o='?' ohs_b='?' ohs_w='?'
    case $ohs_p in "$ohs_skipped" | $$) continue ;; esac
    ohs_stat "$ohs_p" || continue
    set -- $ohs_line
    ohs_t=$((${13} + ${15}))
    while read -r ohs_k ohs_v; do [ "$ohs_k" != write_bytes: ] || ohs_o=$ohs_v; done <"$ohs_d/task/$ohs_p/io"
    while read -r ohs_k ohs_v; do
      case $ohs_k in wchar:) ohs_w=$ohs_v ;; write_bytes:) ohs_b=$ohs_v ;; esac
    done <"$ohs_d/io"
    while read -r ohs_k ohs_v _; do
      case $ohs_k in Uid:) ohs_u=$ohs_v ;; Gid:) ohs_u=$ohs_u:$ohs_v; break ;; esac
    done <"$ohs_d/status"
    read -r ohs_n <"$ohs_d/comm"
    [ -z "$ohs_u" ] || printf '%s\n' "$ohs_p $ohs_o $ohs_b $ohs_w $ohs_t $ohs_u $ohs_n"
  done
} 2>/dev/null

# ohs_ours PID PARENT SESSION: whether a process that began with the command, or after it, belongs to it: by the
# command's own limit of the resident set (limit_mark in process.py; env -i, su and setsid keep it), or, where it has
# no command's limit, by session, by descent, or by the session's mark in its environment.
ohs_ours() {
  ohs_v=
  [ "$ohs_limit" = 0 ] || while read -r _ _ ohs_k ohs_v _; do [ "$ohs_k" != set ] || break; done <"/proc/$1/limits"
  case $ohs_v in "$ohs_limit") return ;; [12]???????????????) return 1 ;; esac   # 16 digits: another command's
  [ "$3" = "$ohs_session" ] && return
  case $ohs_hit in *" $2 "*) return ;; esac
  grep -qs "$ohs_mark" "/proc/$1/environ"
} 2>/dev/null

# ohs_kill SIGNAL SHELL MARK SINCE LIMIT: signal all that belongs to a command that began in SHELL at the clock tick
# SINCE, with that many bytes of resident set as its mark (0: with any), and print their ids. Jobs that were there
# before it stay.
ohs_kill() {
  ohs_sig=$1 ohs_shell=$2 ohs_mark=$3 ohs_since=$4 ohs_limit=$5 ohs_hit=' ' ohs_more=yes
  if ohs_stat "$2"; then
    set -- $ohs_line
    ohs_session=$4
  else
    ohs_session=$2   # a shell that was killed led its session, whose number nobody else gets while one of it lives
  fi
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

