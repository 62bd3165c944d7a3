limited grep -ascHE -e "$pattern" -- "$@" 2>&3
if [ "$most" = 0 ]; then exit; fi
printf %s "$token"
limited grep -asnHE -C "$context" -e "$pattern" -- "$@" | bounded
