while IFS= read -r ohs_line; do eval "$ohs_line"; done
