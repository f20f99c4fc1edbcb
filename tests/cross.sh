#!/usr/bin/env bash
# usage: cross.sh BUILD NATIVE      (make CROSS=... cross)
#
# A checkpoint written here, on this machine: read under the emulator $TL_RUN it gives the same file again, the run
# resumed from it the golden weights, and a run stopped there writes this very file. BUILD holds the foreign
# programs, NATIVE this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 native=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

failed=0
line() { # NAME COMMAND...
    local name=$1
    shift
    if "$@"; then echo "checkpoint: $name"; else echo "checkpoint: $name: FAILED"; failed=1; fi
}
while read -r name want flags; do
    case $name in llama-f32 | gpt2-bf16) ;; *) continue ;; esac
    "$native/train_addition" $flags --stop-at 77 --save "$dir/here" > /dev/null
    $TL_RUN "$build/train_addition" $flags --stop-at 77 --save "$dir/there" > /dev/null
    $TL_RUN "$build/train_addition" $flags --stop-at 77 --resume "$dir/here" --save "$dir/again" > /dev/null
    got=$($TL_RUN "$build/train_addition" $flags --resume "$dir/here" | sed -n 's/^weights sha256 //p')
    line "$name, written there" cmp "$dir/here" "$dir/there"
    line "$name, read and written again" cmp "$dir/here" "$dir/again"
    line "$name, resumed there" [ "$got" = "$want" ]
done < tests/golden/runs.txt
exit $failed
