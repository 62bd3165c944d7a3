said() { printf '%ss%s\0' "$token" "$1" >&3; }

# Run a program for $limit seconds at most, and say how it ended. busybox's `timeout` would leave a process behind that
# holds our streams for a second. xargs, when killed, leaves its child, so the children go first.
limited() {
  exec 4<&0
  "$@" <&4 &
  main=$!
  (
    trap 'kill "$nap"; exit' TERM
    sleep "$limit" &
    nap=$!
    wait "$nap"
    for file in /proc/[0-9]*/stat; do
      read -r pid name state parent rest <"$file" && test "$parent" = "$main" && kill "$pid"
    done
    kill "$main"
  ) </dev/null >/dev/null 2>&1 3>&- 4<&- &
  watch=$!
  wait "$main"
  said "$1 $?"
  kill "$watch"
}
