letters=$1 pattern=$2
shift 2
limited rg -l -0 "$letters" "$@" -e "$pattern" -- "$PWD" 2>&3 | stats
