set -- --no-config --no-messages --text --no-unicode --encoding none -j1 -H --color never --no-heading \
  -e "$pattern" -- "$@"
if [ "$most" = 0 ]; then
  limited rg -c --include-zero "$@" 2>&3
else
  limited rg -n -C "$context" "$@" | bounded
fi
