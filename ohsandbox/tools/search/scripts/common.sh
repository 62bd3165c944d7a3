# TOKEN LIMIT_S TIMES ARGUMENT...: how every search begins, with `rg` as with POSIX tools.
# TOKEN, a secret of the call, begins each record, since a file's name may hold anything else. On stderr stand records
# TOKEN KIND TEXT NUL, and the complaints of rg and grep.
exec 3>&2 2>/dev/null
export LC_ALL=C TZ=UTC0 token="$1"
limit=$2 times=$3
shift 3
