# Without -a: GNU grep then ends lines at NULs, too, and holds no sparse file of 5 GB in memory as one line.
export pattern="$1"
shift
limited find . "$@" | limited xargs -0 -r grep -slE -e "$pattern" -- 2>&3 | tr '\n' '\0' | stats
