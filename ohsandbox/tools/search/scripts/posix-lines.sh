if [ "$most" = 0 ]; then
  limited grep -ascHE -e "$pattern" -- "$@" 2>&3
else
  limited grep -asnHE -C "$context" -e "$pattern" -- "$@" | bounded
fi
