#!/usr/bin/env bash
# usage: kills.sh BUILD MPI [KILLS [SEED]]      (BUILD was made with TL_MPI=1 and that MPI; 100 kills, seed 1)
#
# A run on 2 to 4 processes that saves after every step is killed again and again: kill -9 of any of them at any
# moment, from before MPI has begun on. Each time all processes end by themselves within 30 seconds; the checkpoint,
# where there is one, is whole: the next run, on a number of processes drawn anew, goes on from it. One that gets to its
# end has the weights of a run that nothing has disturbed, and the next begins anew.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 mpi=$2 kills=${3:-100} out=$1/kills bad=0 ended=0 began=0 resumed=0 hit=0
RANDOM=${4:-1}
mkdir -p "$out"
export TL_THREADS=1 # more ranks than cores

launcher=$(command -v "mpirun.$mpi") || { echo "no mpirun.$mpi: make deps-mpi"; exit 1; }
launch=()
if [ "$mpi" = openmpi ]; then launch=(--oversubscribe); [ "$(id -u)" != 0 ] || launch+=(--allow-run-as-root); fi
flags="--steps 400 --batch 10 --width 16 --layers 1 --test 20"
saved=$out/saved.$$
weights() { sed -n 's/^weights sha256 //p'; }
# ours: the processes of the run.
ours() {
    local p
    for p in $(pgrep -f -- "--save $saved"); do
        [ "$(readlink "/proc/$p/exe")" = "$(realpath "$build/train_addition")" ] && echo "$p"
    done
}
fail() { printf '  run %s: %s\n' "$1" "$2"; tail -n 5 "$out/run"; bad=$((bad + 1)); }

# shellcheck disable=SC2086 # flags are words
want=$("$build/train_addition" $flags | weights)
rm -f "$saved"
for ((i = 1; hit < kills && i <= 3 * kills; i++)); do
    ranks=$((2 + RANDOM % 3)) resume=""
    if [ -e "$saved" ]; then resume="--resume $saved"; resumed=$((resumed + 1)); else began=$((began + 1)); fi
    # shellcheck disable=SC2086
    timeout 90 "$launcher" "${launch[@]}" -n $ranks "$build/train_addition" $flags --save "$saved" --save-every 1 $resume > "$out/run" 2>&1 < /dev/null & run=$!
    sleep "$(printf '0.%03d' $((RANDOM % 1000)))"
    mapfile -t all < <(ours)
    if [ ${#all[@]} -gt 0 ]; then kill -KILL "${all[RANDOM % ${#all[@]}]}" 2> /dev/null; killed=1; hit=$((hit + 1)); else killed=0; fi
    SECONDS=0
    wait $run 2> /dev/null; status=$?
    [ $SECONDS -lt 30 ] || fail $i "$ranks processes ended after $SECONDS seconds, status $status"
    for ((k = 0; k < 50 && $(ours | wc -l) > 0; k++)); do sleep 0.1; done
    [ "$(ours | wc -l)" = 0 ] || fail $i "processes are left: $(ours | tr '\n' ' ')"
    if [ $status = 0 ]; then
        [ "$(weights < "$out/run")" = "$want" ] || fail $i "other weights after $resumed resumptions"
        ended=$((ended + 1)); rm -f "$saved"
    elif [ $killed = 0 ] || grep -qE 'checkpoint|saved\.' "$out/run"; then
        fail $i "status $status, and not by the kill"
    fi
done
# What is left goes on, alone.
if [ -e "$saved" ]; then
    # shellcheck disable=SC2086
    [ "$("$build/train_addition" $flags --resume "$saved" 2> "$out/run" | weights)" = "$want" ] || fail last "other weights, resumed alone"
fi
rm -f "$saved"
[ "$hit" -ge "$kills" ] || fail last "$hit kills of $kills"
printf '%s: %d kills, %d runs from the beginning, %d resumed, %d to the end, %d failures\n' "$mpi" "$hit" "$began" "$resumed" "$ended" "$bad"
[ "$bad" = 0 ]
