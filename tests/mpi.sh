#!/usr/bin/env bash
# usage: mpi.sh BUILD MPI [small]      (make mpi; MPI is openmpi or mpich, and BUILD was made with it)
#
# Training over processes: programs whose batches are cut unevenly, some parts empty, end with one hash for any
# number of them, and as without MPI; so do the examples, also stopped and resumed by another number. A process
# that differs, dies or hangs ends the run everywhere, and is named. small: only the first, for two numbers.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 mpi=$2 small=${3:-} passed=0 failed=0 out=$1/mpirun
mkdir -p "$out"
export TL_THREADS=1 # more ranks than cores

launcher=$(command -v "mpirun.$mpi" || command -v mpirun) || { echo "no mpirun: make deps-mpi"; exit 1; }
launch=()
if [ "$mpi" = openmpi ]; then launch=(--oversubscribe); [ "$(id -u)" != 0 ] || launch+=(--allow-run-as-root); fi
ranks() { local n=$1; shift; timeout 300 "$launcher" "${launch[@]}" -n "$n" "$@" < /dev/null; }

# verdict LINE WANT GOT
verdict() {
    if [ "$2" = "$3" ] && [ -n "$2" ]; then
        passed=$((passed + 1)); printf '  %-60s equal\n' "$1"
    else
        failed=$((failed + 1)); printf '  %-60s FAILED\n' "$1"; diff <(echo "$2") <(echo "$3"); tail -n 3 "$out/stderr"
    fi
}

printf '%s: %s\n' "$mpi" "$("$launcher" --version 2>/dev/null | head -n 1)"
alone=$("$build/tests/grouped" 2>"$out/stderr")
for n in ${small:+1 3} $([ -n "$small" ] || echo 1 2 3 4 7); do
    verdict "$(echo "$alone" | wc -l) programs on $n ranks" "$alone" "$(ranks "$n" "$build/tests/grouped" "$n" 2>"$out/stderr")"
done

weights() { sed -n 's/^weights sha256 //p'; }
# says LINE TEXT [WANT]: stderr has the text, and the run has ended in fewer than 60 seconds, not well.
says() {
    if grep -qE -- "$2" "$out/stderr" && [ "$status" != 0 ] && [ "$status" != 124 ] && [ $SECONDS -lt 60 ]; then
        passed=$((passed + 1)); printf '  %-60s told\n' "$1"
    else
        failed=$((failed + 1)); printf '  %-60s FAILED: status %s, %s s\n' "$1" "$status" $SECONDS; tail -n 5 "$out/stderr"
    fi
}
# rank_of WORD RANK: the process of that rank, whose command line has the word.
rank_of() {
    local p
    for p in $(pgrep -f -- "$1"); do
        tr '\0' '\n' 2>/dev/null < "/proc/$p/environ" | grep -qxE "(OMPI_COMM_WORLD_RANK|PMI_RANK)=$2" &&
            [ "$(readlink "/proc/$p/exe")" = "$(realpath "$build/train_addition")" ] && echo "$p" && return
    done
}

if [ -z "$small" ]; then
    text="--text tests/README.md --steps 4 --batch 7 --seq 16 --width 16 --layers 1 --sample 20"
    sums="--steps 12 --batch 10 --width 16 --layers 1 --test 20"
    while read -r name flags; do
        # shellcheck disable=SC2086 # flags are words
        for n in 2 3 7; do
            verdict "$name on $n ranks ${flags:0:30}" "$("$build/$name" $flags 2>"$out/stderr" | weights)" \
                "$(ranks $n "$build/$name" $flags 2>"$out/stderr" | weights)"
        done
    done <<END
train_text $text
train_text --tied --bf16 --micro-batch 7 $text
train_text --compile --tied --micro-batch 7 $text
train_text --shard --bf16 --compile --clip 0.1 $text
train_addition --model gpt2 --micro-batch 5 $sums
train_addition --compile --model lstm --micro-batch 5 $sums
train_addition --model lstm --dtype bf16 --verify-every 2 $sums
digits --samples 60 --steps 9 --batch 10 --micro-batch 5
vae --samples 60 --steps 9 --batch 5 --hidden 16
vae --compile --samples 60 --steps 9 --batch 5 --hidden 16
END
    # shellcheck disable=SC2086
    {
        want=$("$build/train_addition" $sums | weights)
        ranks 3 "$build/train_addition" $sums --stop-at 5 --save "$out/saved" > /dev/null 2>"$out/stderr"
        verdict "stopped on 3 ranks, resumed on 2" "$want" "$(ranks 2 "$build/train_addition" $sums --resume "$out/saved" 2>"$out/stderr" | weights)"
        text_want=$("$build/train_text" $text --bf16 | weights)
        ranks 4 "$build/train_text" $text --bf16 --shard --save-every 1 --stop-at 3 --save "$out/cut" > /dev/null 2>"$out/stderr"
        "$build/train_text" $text --bf16 --stop-at 3 --save "$out/uncut" > /dev/null 2>"$out/stderr"
        verdict "state on 4 ranks, saved as by one" "$(sha256sum < "$out/uncut")" "$(sha256sum < "$out/cut")"
        verdict "resumed on 3" "$text_want" "$(ranks 3 "$build/train_text" $text --bf16 --shard --resume "$out/cut" 2>"$out/stderr" | weights)"
        verdict "and alone" "$want" "$("$build/train_addition" $sums --resume "$out/saved" 2>"$out/stderr" | weights)"

        for n in 2 3; do ranks $n "$build/train_addition" $sums --log "$out/log$n" > /dev/null 2>"$out/stderr"; done
        verdict "logs of the ranks' updates" "No difference, no difference" \
            "$("$build/tally-diff" "$out"/log2.[01] | grep -o '^No difference'), $("$build/tally-diff" "$out"/log[23].1 | grep -o '^No difference' | tr N n)"
        verdict "the run says how many they are" "on 3 processes of 1 thread" \
            "$(ranks 3 "$build/train_text" $text 2>"$out/stderr" | grep -o 'on 3 processes of .*')"
        SECONDS=0; ranks 1 "$build/train_addition" $sums : -n 1 "$build/train_addition" $sums --stop-at 3 > /dev/null 2>"$out/stderr"; status=$?
        says "another last step" "rank 1 has --stop-at 3, rank 0 has 0"
        for other in openmpi mpich; do
            launch_other=$(command -v mpirun.$other) && [ $other != "$mpi" ] || continue
            root=$([ $other = openmpi ] && echo --oversubscribe; [ $other = openmpi ] && [ "$(id -u)" = 0 ] && echo --allow-run-as-root)
            SECONDS=0; timeout 60 "$launch_other" $root -n 2 "$build/train_addition" $sums > /dev/null 2>"$out/stderr" < /dev/null; status=$?
            says "started by $other" "started as one of 2 processes"
        done
        SECONDS=0; ranks 1 "$build/train_addition" $sums : -n 1 "$build/train_addition" $sums --seed 2 > /dev/null 2>"$out/stderr"; status=$?
        says "another seed" "rank 1 has seed 2, rank 0 has 1"
        for i in 1 2; do # six pictures of 4 x 4 in IDX
            mkdir -p "$out/data$i"
            { printf '\0\0\10\3\0\0\0\6\0\0\0\4\0\0\0\4'; head -c 96 /dev/zero | tr '\0' "$i"; } > "$out/data$i/pictures"
        done
        vae=$(realpath "$build/vae")
        SECONDS=0; ranks 1 env -C "$out/data1" "$vae" --images pictures --batch 2 : -n 1 env -C "$out/data2" "$vae" --images pictures --batch 2 > /dev/null 2>"$out/stderr"; status=$?
        says "other pictures in a file of the same name" "rank 1 has pictures [0-9a-f]+, rank 0 has [0-9a-f]+"
        SECONDS=0; ranks 2 "$build/train_addition" $sums : -n 1 "$build/train_addition" $sums --width 24 > /dev/null 2>"$out/stderr"; status=$?
        says "another width" "rank 2 has --width 24, rank 0 has 16"

        long="$sums --steps 100000 --save $out/faults.$$ --save-every 3"
        for signal in KILL STOP; do
            SECONDS=0; rm -f "$out/faults.$$"
            TL_MPI_TIMEOUT=3 ranks 3 "$build/train_addition" $long > "$out/stderr" 2>&1 & run=$!
            while [ ! -s "$out/faults.$$" ] && [ $SECONDS -lt 30 ]; do sleep 0.1; done
            victim=$(rank_of "$out/faults.$$" 1)
            [ -n "$victim" ] && kill -$signal "$victim"
            wait $run; status=$?
            # by mpirun alone: Open MPI names the rank, MPICH only the process
            [ $signal = KILL ] && { says "a rank is killed" "signal 9|SIGNAL 9|BAD TERMINATION|KILLED"; continue; }
            says "a rank hangs" "rank 1 has (sent|taken) nothing for 3 s"
        done
        SECONDS=0; TL_MPI_TIMEOUT=10m ranks 2 "$build/train_addition" $sums > /dev/null 2>"$out/stderr"; status=$?
        says "a timeout that is not a number" "TL_MPI_TIMEOUT=10m: a number of seconds above 0 is needed"
        # rank 0 waits after the last step for who reads its picture
        SECONDS=0; rm -f "$out/pipe"; mkfifo "$out/pipe"
        TL_MPI_TIMEOUT=3 ranks 3 "$build/train_addition" $sums --svg "$out/pipe" > "$out/stderr" 2>&1; status=$?
        says "a rank hangs after the last step" "rank 0 has (sent|taken) nothing for 3 s"

        SECONDS=0; rm -f "$out/faults.$$"
        ranks 3 "$build/train_addition" $long > "$out/stderr" 2>&1 & run=$!
        while [ ! -s "$out/faults.$$" ] && [ $SECONDS -lt 30 ]; do sleep 0.1; done
        first=$(rank_of "$out/faults.$$" 0)
        [ -n "$first" ] && kill -INT "$first"
        wait $run; status=$?
        says "rank 0 is interrupted, and saves" "rank 0: interrupted after step [0-9]+; saved to"
        # how far it came is chance: resumed to one step, one and three processes agree
        verdict "what it had saved is whole, resumed on 3 and alone" \
            "$(timeout 60 "$build/train_addition" $long --save "$out/alone" --save-every 0 --resume "$out/faults.$$" --stop-at 300 2>"$out/stderr" | weights)" \
            "$(ranks 3 "$build/train_addition" $long --save "$out/three" --save-every 0 --resume "$out/faults.$$" --stop-at 300 2>"$out/stderr" | weights)"
    }
fi

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
