set -- --no-config --no-messages --text --no-unicode --encoding none -j1 -H --color never --no-heading \
  -e "$pattern" -- "$@"
limited rg -c --include-zero "$@" 2>&3
if [ "$most" = 0 ]; then exit; fi
printf %s "$token"
limited rg -n -C "$context" "$@" | bounded
