# The entries of directory $1, two levels deep, without hidden ones: kind (d, l, f), path, NUL; then how many are hidden.
LC_ALL=C
export LC_ALL
cd -- "$1" && [ -r . ] || exit 1
entries() {
  for entry in "$1"*; do
    if [ -L "$entry" ]; then
      kind=l
    elif [ -d "$entry" ]; then
      kind=d
    elif [ -e "$entry" ]; then
      kind=f
    else
      continue
    fi
    printf '%s%s\000' "$kind" "${entry#./}"
    [ "$2$kind" != 1d ] || entries "$entry/" 2
  done
}
entries ./ 1
hidden=0
for entry in .[!.]* ..?*; do
  if [ -e "$entry" ] || [ -L "$entry" ]; then hidden=$((hidden + 1)); fi
done
printf %s "$hidden"
