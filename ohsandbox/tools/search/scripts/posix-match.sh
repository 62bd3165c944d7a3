export pattern="$1"
shift
limited find . "$@" | limited xargs -0 -r grep -aslE -e "$pattern" -- 2>&3 | tr '\n' '\0' | stats
