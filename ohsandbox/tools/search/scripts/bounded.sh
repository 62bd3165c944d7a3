pattern=$1 context=$2 cut=$3 most=$4
shift 4

# grep's own output, long lines cut; NUL, which cut would end a line at, becomes another control character.
bounded() { tr '\000' '\001' | cut -b "1-$cut" | head -c "$most"; }
