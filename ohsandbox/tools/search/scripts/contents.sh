# FILE...: their names, a NUL after each, TOKEN, and every line of each after its name and a colon.
if [ $# -eq 0 ]; then exit; fi
printf '%s\0' "$@"
printf %s "$token"
grep -aH '' /dev/null "$@"
