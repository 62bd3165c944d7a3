# The file operations, each the body of one call. A failure is reported on stderr: 'errno NAME', or the message of the
# tool that failed, which ends in strerror's text in the C locale.

# ohs_refuse NAME: end the call with this error.
ohs_refuse() {
  echo "errno $1" >&2
  exit 1
}

# ohs_absent PATH: end the call with the reason why PATH cannot be reached, checked from the root down.
ohs_absent() {
  ohs_at= ohs_rest=${1#/}/
  while [ "$ohs_rest" ]; do
    ohs_at=$ohs_at/${ohs_rest%%/*} ohs_rest=${ohs_rest#*/}
    if [ -d "$ohs_at" ]; then
      [ -x "$ohs_at" ] || ohs_refuse EACCES
    elif [ -e "$ohs_at" ]; then
      ohs_refuse ENOTDIR
    else
      [ ! -L "$ohs_at" ] || : <"$ohs_at" || exit 1 # a loop, or dangling: the open says which
      ohs_refuse ENOENT
    fi
  done
  ohs_refuse ENOENT
}

# ohs_regular PATH: whether PATH is a regular file; end the call if it exists and is something else.
ohs_regular() {
  [ -f "$1" ] && return
  [ ! -d "$1" ] || ohs_refuse EISDIR
  [ ! -p "$1" ] || ohs_refuse FIFO
  [ ! -S "$1" ] || ohs_refuse SOCKET
  [ ! -e "$1" ] || ohs_refuse DEVICE
  return 1
}

# ohs_read PATH BLOCKS [BYTES]: print at most that many blocks of 128 KiB of a regular file. What is read counts: the
# size of files in /proc is 0. With BYTES, a file whose size is larger is refused unread.
ohs_read() {
  ohs_regular "$1" || ohs_absent "$1"
  [ -r "$1" ] || ohs_refuse EACCES
  [ -z "$3" ] || ! [ "$(stat -L -c %s -- "$1" 2>/dev/null)" -gt "$3" ] 2>/dev/null || ohs_refuse EFBIG
  ohs_dd || exec head -c "$(($2 * 131072))" <"$1"
  exec dd bs=131072 count="$2" iflag=fullblock <"$1"
}

# ohs_write PATH MODE BYTES TEMP: replace the file by our stdin; the old file stays until the new one is complete. An
# empty MODE is that of the old file, or 644. TEMP is a random name; the new file is changed through descriptor 3 only,
# which no other process can replace. Programs get it as an output: mksh and ksh93 pass on no descriptor above 2.
ohs_write() {
  umask 022
  ohs_to=$1 ohs_old= ohs_mode=${2:-644} ohs_owner= ohs_mine=
  [ ! -L "$1" ] || ohs_follow
  ohs_dir=${ohs_to%/*}/
  if ohs_regular "$ohs_to"; then
    ohs_old=yes
    [ -w "$ohs_to" ] || ohs_unwritable "$ohs_to"
    [ -w "$ohs_dir" ] || ohs_in_place "$@"
    ohs_learn "$ohs_to" "$ohs_dir" "$2"
  elif [ ! -d "$ohs_dir" ]; then
    mkdir -p -- "$ohs_dir" || ohs_blocked "$ohs_dir"
  fi
  ohs_umask "$ohs_mode"
  ohs_new=$ohs_dir$4
  set -C # a shell then creates exclusively: a link that waits at this name is not followed
  exec 3>"$ohs_new" || exit 1
  trap 'rm -f -- "$ohs_new"' EXIT
  ohs_fill "$3"
  ohs_settle
  exec 3>&-
}

# ohs_follow: replace the symlink $ohs_to by its target. Not by readlink -f: busybox's fails if the target is missing.
ohs_follow() {
  [ ! -e "$ohs_to" ] || ohs_regular "$ohs_to"
  ohs_link=$ohs_to ohs_hops=0
  while [ -L "$ohs_to" ]; do
    [ "$ohs_hops" -lt 40 ] || ohs_refuse ELOOP
    ohs_hops=$((ohs_hops + 1))
    ohs_next=$(readlink -- "$ohs_to" && echo .) && ohs_next=${ohs_next%??} || exit 1
    case $ohs_next in
      /*) ohs_to=$ohs_next ;;
      *) ohs_to=${ohs_to%/*}/$ohs_next ;;
    esac
  done
  case $ohs_to in */ | */. | */..) ohs_refuse EISDIR ;; esac
  [ -d "${ohs_to%/*}/" ] || ohs_absent "$ohs_link"
}

# ohs_unwritable FILE: end the call with the system's reason: no permission, or a read-only file system.
ohs_unwritable() {
  : >>"$1" || exit 1
  ohs_refuse EACCES
}

# ohs_blocked DIR: end a call whose mkdir failed and has printed the reason; ENOTDIR if a file is in the way.
ohs_blocked() {
  [ "$(ohs_absent "$1" 2>&1)" != 'errno ENOTDIR' ] || ohs_refuse ENOTDIR
  exit 1
}

# ohs_learn FILE DIR MODE: the mode that the new FILE shall have (MODE, or that of the old one without setuid, setgid
# and sticky), the old one's owner, and the owner that a file gets which we make in DIR.
ohs_learn() {
  ohs_mode=$3
  set -- $(stat -L -c '%a %u:%g' -- "$1" "$2" /proc/self)
  [ $# = 6 ] || exit 1
  ohs_owner=$2 ohs_mine=$6
  case $3 in [2367]???) ohs_mine=${6%:*}:${4#*:} ;; esac # setgid on a directory gives its group
  [ -z "$ohs_mode" ] || return 0
  ohs_mode=00$1
  ohs_mode=${ohs_mode#"${ohs_mode%???}"}
}

# ohs_umask MODE: so that a new file has MODE at once, or where only chmod can give it, nothing for others until then.
ohs_umask() {
  case $1 in
    [0246][0246][0246])
      ohs_mode=
      set -- "${1%??}" "${1%?}" "${1#??}"
      umask "$((6 - $1))$((6 - ${2#?}))$((6 - $3))"
      ;;
    *) umask 077 ;;
  esac
}

# ohs_fill BYTES: as many of our input into descriptor 3, or the end of the call. Where $ohs_to_end says that nothing
# comes behind them, to the end of our input.
ohs_fill() {
  case $ohs_to_end:$1 in
    *:0) ;;
    :*) dd bs="$1" count=1 iflag=fullblock >&3 && [ -s /proc/self/fd/3 ] || exit 1 ;;
    *) cat >&3 && [ "$(stat -L -c %s /proc/self/fd/2 2>&3)" = "$1" ] || exit 1 ;;
  esac
}

# ohs_settle: owner and mode, then the name. An owner that we cannot give, or a name that cannot be replaced (a mount
# point, or another's file in a sticky directory), leaves the old file in place with the new bytes.
ohs_settle() {
  if [ "$ohs_owner" = "$ohs_mine" ] || chown "$ohs_owner" /proc/self/fd/1 >&3; then
    [ -z "$ohs_mode" ] || chmod "$ohs_mode" /proc/self/fd/1 >&3 || exit 1
    if mv -f -- "$ohs_new" "$ohs_to" && [ ! -e "$ohs_new" ]; then trap - EXIT; return; fi
  fi
  [ "$ohs_old" ] && cat -- "$ohs_new" >|"$ohs_to" || exit 1
}

# ohs_in_place PATH MODE BYTES: the whole call where the directory takes no new file.
ohs_in_place() {
  exec 3>|"$ohs_to" || exit 1
  ohs_fill "$3"
  [ -z "$2" ] || chmod "$2" /proc/self/fd/1 >&3
  exit
}

# ohs_list PATH: './name' of each entry, ended by a NUL; an empty one; a line 'mode size time ./name' for each that is
# still there, in the same order. A pattern that matches nothing stands for itself, first, and is no file.
ohs_list() {
  [ -d "$1" ] || ohs_absent "$1"
  [ -r "$1" ] && cd -- "$1" || ohs_refuse EACCES
  set -- *
  [ -e "$1" ] || [ -L "$1" ] || shift
  set -- .[!.]* "$@"
  [ -e "$1" ] || [ -L "$1" ] || shift
  set -- ..?* "$@"
  [ -e "$1" ] || [ -L "$1" ] || shift
  [ $# -gt 0 ] || return 0
  printf './%s\000' "$@"
  printf '\000'
  printf './%s\000' "$@" | xargs -0 stat -c '%f %s %Y %n' --
  case $? in
    126 | 127) echo 'stat: not found' >&2; exit 127 ;;
    0) return 0 ;;
    *) stat -c %f -- . >/dev/null ;; # some vanished meanwhile, or it tells nothing: gVisor of 2022 with coreutils 9
  esac
}
