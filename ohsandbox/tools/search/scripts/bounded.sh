letters=$1 pattern=$2 context=$3 cut=$4 most=$5
shift 5

# grep's own output, long lines cut; NUL, which cut would end a line at, becomes another control character.
bounded() { tr '\000' '\001' | cut -b "1-$cut" | head -c "$most"; }
