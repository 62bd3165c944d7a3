pattern=$1
shift
limited rg -l -0 "$@" -e "$pattern" -- "$PWD" 2>&3 | stats
