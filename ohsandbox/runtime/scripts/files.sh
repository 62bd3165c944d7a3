# The file operations, each the body of one call. What fails says why on stderr: 'errno NAME', or the text of the
# tool that failed, whose last words are the system's own (strerror in the C locale).

# ohs_refuse NAME: the end of a call, with the error's name.
ohs_refuse() {
  echo "errno $1" >&2
  exit 1
}

# ohs_absent PATH: refuse it by what stands in its way, from the root down.
ohs_absent() {
  ohs_at= ohs_rest=${1#/}/
  while [ "$ohs_rest" ]; do
    ohs_at=$ohs_at/${ohs_rest%%/*} ohs_rest=${ohs_rest#*/}
    if [ -d "$ohs_at" ]; then
      [ -x "$ohs_at" ] || ohs_refuse EACCES
    elif [ -e "$ohs_at" ]; then
      ohs_refuse ENOTDIR
    else
      ohs_refuse ENOENT
    fi
  done
  ohs_refuse ENOENT
}

# ohs_regular PATH: refuse what is there and is no regular file.
ohs_regular() {
  [ -f "$1" ] && return
  [ ! -d "$1" ] || ohs_refuse EISDIR
  [ ! -p "$1" ] || ohs_refuse FIFO
  [ ! -S "$1" ] || ohs_refuse SOCKET
  [ ! -e "$1" ] || ohs_refuse DEVICE
  return 1
}

# ohs_read PATH BYTES: at most that many bytes of a regular file.
ohs_read() {
  ohs_regular "$1" || ohs_absent "$1"
  [ -r "$1" ] || ohs_refuse EACCES
  exec head -c "$2" <"$1"
}

# ohs_write PATH MODE BYTES: the next BYTES of our input, or all of it, become the file; the old one stays until the
# new one is whole. MODE may be empty: that of the old file, or the umask's.
ohs_write() {
  ohs_to=$1
  if [ -L "$ohs_to" ]; then ohs_to=$(readlink -f -- "$1" && echo .) && ohs_to=${ohs_to%??} || ohs_absent "$1"; fi
  ohs_old=yes
  ohs_regular "$ohs_to" || ohs_old=
  [ -z "$ohs_old" ] || [ -w "$ohs_to" ] || ohs_refuse EACCES
  ohs_dir=${ohs_to%/*}/
  [ -d "$ohs_dir" ] || mkdir -p -- "$ohs_dir" || exit
  ohs_new=${ohs_dir}.ohs-$$.tmp
  trap 'rm -f -- "$ohs_new"' EXIT
  set -C
  case $3 in
    0) : >"$ohs_new" ;;
    [1-9]*) dd bs="$3" count=1 iflag=fullblock >"$ohs_new" ;;
    *) cat >"$ohs_new" ;;
  esac || exit
  if [ "$2" ]; then
    chmod "$2" -- "$ohs_new" || exit
  elif [ "$ohs_old" ]; then
    ohs_keep "$ohs_to" "$ohs_new" || exit
  fi
  mv -f -- "$ohs_new" "$ohs_to" || exit
  trap - EXIT
}

# ohs_keep OLD NEW: give NEW the mode and owner of OLD.
ohs_keep() {
  set -- "$1" "$2" $(stat -c '%a %u:%g' -- "$1" "$2")
  [ "$4" = "$6" ] || chown "$4" -- "$2" || return
  [ "$3 $4" = "$5 $6" ] || chmod "$3" -- "$2"
}

# ohs_list PATH: the names, each ended by a NUL; an empty one; a line 'mode size time' for each, in the same order.
ohs_list() {
  [ -d "$1" ] || ohs_absent "$1"
  [ -r "$1" ] || ohs_refuse EACCES
  cd -- "$1" || ohs_refuse EACCES
  set -- * .[!.]* ..?*
  ohs_n=$#
  while [ "$ohs_n" -gt 0 ]; do
    if [ -e "$1" ] || [ -L "$1" ]; then set -- "$@" "$1"; fi
    shift
    ohs_n=$((ohs_n - 1))
  done
  [ $# -gt 0 ] || return 0
  printf '%s\000' "$@"
  printf '\000'
  printf '%s\000' "$@" | xargs -0 stat -c '%f %s %Y' --
}

