# PATH PREFIX: into a directory, and into one below it that may be missing; prints where it is, and a NUL.
if [ -f "$1" ]; then exit 102; fi
if [ ! -e "$1" ]; then exit 101; fi
if [ ! -d "$1" ]; then exit 103; fi
cd -P -- "$1" || exit 104
if [ -n "$2" ]; then cd -P -- "./$2" || exit 105; fi
printf '%s\0' "$PWD"
shift 2
