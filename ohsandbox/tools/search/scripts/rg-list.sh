limited rg --files -0 "$@" -- "$PWD" 2>&3 | stats
