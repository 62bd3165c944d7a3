set -- --no-config --no-messages --text --encoding none -j1 -H --color never --no-heading \
  "$letters" -e "$pattern" -- "$@"
if [ "$most" = 0 ]; then
  limited rg -c --include-zero "$@" 2>&3
else
  limited rg -n -C "$context" "$@" | bounded
fi
