# The ignore files of this directory, of all above it, and of two levels below: those worth knowing before the walk.
set --
above=${PWD%/}
while :; do
  if [ -f "$above/.gitignore" ]; then set -- "$@" "$above/.gitignore"; fi
  if [ -z "$above" ]; then break; fi
  above=${above%/*}
done
for file in "${PWD%/}"/*/.gitignore "${PWD%/}"/*/*/.gitignore; do
  if [ -f "$file" ]; then set -- "$@" "$file"; fi
done
