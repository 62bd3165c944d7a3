# Directories in and out, as tar on our own streams. Stands behind files.sh, whose way to say what failed it shares.
LC_ALL=C
export LC_ALL
umask 022

# ohs_unpack DIR FILE: the archive on stdin, into DIR, which is made. FILE: the one file it holds, or empty.
ohs_unpack() {
  [ -z "$2" ] || [ ! -d "${1%/}/$2" ] || ohs_refuse EISDIR
  [ -d "$1" ] || mkdir -p -- "$1" || ohs_blocked "$1"
  exec tar -xpof - -C "$1"
}

# ohs_pack PATH: a file as the only member, through a symlink; a directory as '.' and all that is in it.
ohs_pack() {
  if [ -d "$1" ]; then
    [ -r "$1" ] && cd -- "$1" || ohs_refuse EACCES
    exec tar -cf - .
  fi
  ohs_regular "$1" || ohs_absent "$1"
  [ -r "$1" ] || ohs_refuse EACCES
  cd -- "${1%/*}/" && exec tar -chf - -- "./${1##*/}"
}
