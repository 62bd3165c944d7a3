# JOB TOKEN LIMIT_S TIMES ARGUMENT...: everything that `glob` and `grep` do in a sandbox, with `rg` or with POSIX tools.
# A directory's jobs print its physical path, a NUL, and records. TOKEN, a secret of the call, begins a record, since a
# file's name may hold anything else. On stderr stand records TOKEN KIND TEXT NUL, and the complaints of rg and grep.
exec 3>&2 2>/dev/null
export LC_ALL=C TZ=UTC0
job=$1 limit=$3 times=$4
export token="$2"
shift 4

said() { printf '%s%s%s\0' "$token" s "$1" >&3; }

# Names in, records of time and name out. GNU find (4.9) takes them as they come, in half of stat's time.
stats() {
  if [ "$times" = find ]; then
    find -files0-from - -maxdepth 0 -printf "$token%T+ %p\n"
  else
    xargs -0 -r stat -c "$token%y %n"
  fi
}

find_() { timeout "$limit" find . "$@"; said "find $?"; }

rg_() { timeout "$limit" rg "$@" 2>&3; said "rg $?"; }

greps() { timeout "$limit" xargs -0 -r grep -aslE -e "$pattern" -- 2>&3; said "grep $?"; }

# A directory, and one below it that may be missing.
enter() {
  if [ -f "$1" ]; then exit 102; fi
  if [ ! -e "$1" ]; then exit 101; fi
  if [ ! -d "$1" ]; then exit 103; fi
  cd -P -- "$1" || exit 104
  if [ -n "$2" ]; then cd -P -- "./$2" || exit 105; fi
  printf '%s\0' "$PWD"
}

contents() {
  if [ $# -eq 0 ]; then return; fi
  printf '%s\0' "$@"
  printf %s "$token"
  grep -aH '' /dev/null "$@"
}

# The ignore files of this directory, of all above it, and of two levels below: those worth knowing before the walk.
look() {
  set --
  above=${PWD%/}
  while :; do
    if [ -f "$above/.gitignore" ]; then set -- "$@" "$above/.gitignore"; fi
    if [ -z "$above" ]; then break; fi
    above=${above%/*}
  done
  for file in "${PWD%/}"/*/.gitignore "${PWD%/}"/*/*/.gitignore; do
    if [ -f "$file" ]; then set -- "$@" "$file"; fi
  done
  contents "$@"
}

# grep's own output, long lines cut; NUL, which cut would end a line at, becomes another control character.
bounded() { tr '\000' '\001' | cut -b "1-$cut" | head -c "$most"; }

case $job in
contents) contents "$@" ;;
look) enter "$1" "$2" && look ;;
posix-list)
  enter "$1" "$2" && shift 2
  find_ "$@" | stats
  ;;
posix-match)
  export pattern="$3"
  enter "$1" "$2" && shift 3
  find_ "$@" | greps | tr '\n' '\0' | stats
  ;;
rg-list)
  enter "$1" "$2" && shift 2
  rg_ --files -0 "$@" -- "$PWD" | stats
  ;;
rg-match)
  pattern=$3
  enter "$1" "$2" && shift 3
  rg_ -l -0 "$@" -e "$pattern" -- "$PWD" | stats
  ;;
posix-lines)
  pattern=$1 context=$2 cut=$3 most=$4
  shift 4
  timeout "$limit" grep -ascHE -e "$pattern" -- "$@" 2>&3
  said "grep $?"
  if [ "$most" = 0 ]; then exit; fi
  printf %s "$token"
  timeout "$limit" grep -asnHE -C "$context" -e "$pattern" -- "$@" | bounded
  ;;
rg-lines)
  pattern=$1 context=$2 cut=$3 most=$4
  shift 4
  set -- --no-config --no-messages --text --no-unicode --encoding none -j1 -H --color never --no-heading \
    -e "$pattern" -- "$@"
  rg_ -c --include-zero "$@"
  if [ "$most" = 0 ]; then exit; fi
  printf %s "$token"
  timeout "$limit" rg -n -C "$context" "$@" | bounded
  ;;
esac
