# Without -a: GNU grep then ends lines at NULs, too, and holds no sparse file of 5 GB in memory as one line.
export letters="$1" pattern="$2"
shift 2
limited find . "$@" | limited xargs -0 -r grep -l "$letters" -e "$pattern" -- 2>&3 | tr '\n' '\0' | stats
