# Upload and download of files and directories as tar on stdin and stdout. Follows files.sh and uses its functions.
LC_ALL=C
export LC_ALL
umask 022

# ohs_unpack DIR FILE TEMP: unpack the archive on stdin into DIR, which is created. FILE: the name that its only member,
# TEMP, gets once it is complete; or empty.
ohs_unpack() {
  [ -z "$2" ] || [ ! -d "${1%/}/$2" ] || ohs_refuse EISDIR
  [ -d "$1" ] || mkdir -p -- "$1" || ohs_blocked "$1"
  [ "$2" ] || exec tar -xpof - -C "$1"
  ohs_new=${1%/}/$3
  trap 'rm -f -- "$ohs_new"' EXIT
  tar -xpof - -C "$1" && mv -f -- "$ohs_new" "${1%/}/$2"
}

# ohs_pack PATH: write an archive of a file (a symlink is followed), or of a directory as '.' with its contents.
ohs_pack() {
  if [ -d "$1" ]; then
    [ -r "$1" ] && cd -- "$1" || ohs_refuse EACCES
    exec tar -cf - .
  fi
  ohs_regular "$1" || ohs_absent "$1"
  [ -r "$1" ] || ohs_refuse EACCES
  cd -- "${1%/*}/" && exec tar -chf - -- "./${1##*/}"
}
