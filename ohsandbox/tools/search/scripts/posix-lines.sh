if [ "$most" = 0 ]; then
  limited grep -acH "$letters" -e "$pattern" -- "$@" 2>&3
else
  limited grep -anH "$letters" -C "$context" -e "$pattern" -- "$@" | bounded
fi
