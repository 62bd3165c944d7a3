# One thread: over 20,000 files it takes 15 ms, where two take 19 ms and twice the CPU (rg 14.1).
limited rg --files -0 -j1 "$@" -- "$PWD" 2>&3 | stats
