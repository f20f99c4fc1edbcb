#!/usr/bin/env bash
# usage: cross.sh BUILD NATIVE      (make CROSS=... cross)
#
# What of the suite is quick enough under an emulator ($TL_RUN), and a checkpoint written here, on this machine:
# read there it gives the same file again, the run resumed from it the golden weights, and the file written
# there is this one. BUILD holds the foreign programs, NATIVE this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 native=$2
export OMP_WAIT_POLICY=passive
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# shellcheck disable=SC2086
$TL_RUN "$build/tests/runner" $QUICK

failed=0
line() { # NAME COMMAND...
    local name=$1
    shift
    if "$@"; then echo "checkpoint: $name"; else echo "checkpoint: $name: FAILED"; failed=1; fi
}
while read -r name want flags; do
    case $name in '#'* | *-wide) continue ;; esac
    "$native/train_addition" $flags --stop-at 77 --save "$dir/here" > /dev/null
    $TL_RUN "$build/train_addition" $flags --stop-at 77 --save "$dir/there" > /dev/null
    $TL_RUN "$build/train_addition" $flags --stop-at 77 --resume "$dir/here" --save "$dir/again" > /dev/null
    got=$($TL_RUN "$build/train_addition" $flags --resume "$dir/here" | sed -n 's/^weights sha256 //p')
    line "$name, written there" cmp "$dir/here" "$dir/there"
    line "$name, read and written again" cmp "$dir/here" "$dir/again"
    line "$name, resumed there" [ "$got" = "$want" ]
done < tests/golden/runs.txt
exit $failed
