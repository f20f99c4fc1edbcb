#!/usr/bin/env bash
# usage: bits.sh BUILD      (make bits; BUILD holds tests/runner)
#
# The golden runs of tests/golden/runs.txt along every axis: each line below an axis is one way to build
# or to run, and passes when every run ends with the weights written there. A build may also refuse, with
# the reason, where a line asks for that. What cannot be run here says so, and counts as neither.
set -uo pipefail
shopt -s extglob
cd "$(dirname "$0")/.."
out=$1/bits runner=$1/tests/runner passed=0 failed=0 not_run=0
mkdir -p "$out"

axis() { printf '\n%s\n' "$1"; }
pass() { passed=$((passed + 1)); printf '  %-52s %s\n' "$1" "$2"; }
fail() { failed=$((failed + 1)); printf '  %-52s FAILED: %s\n' "$1" "$2"; }
skip() { not_run=$((not_run + 1)); printf '  %-52s not run: %s\n' "$1" "$2"; }

# weights COMMAND...: the weights that it ends with.
weights() { "$@" 2>"$out/stderr" | sed -n 's/^weights sha256 //p'; }

# equal LINE RUNS COMMAND...: the golden runs whose names fit the pattern RUNS, each as COMMAND with its flags;
# a run of @PROGRAM as that one beside train_addition, where COMMAND is it.
equal() {
    local line=$1 runs=$2 name want flags n=0 differs="" got program
    shift 2
    while read -r name want flags; do
        [[ $name == \#* || $name != $runs ]] && continue
        program=train_addition
        if [[ $flags == @* ]]; then
            [[ " $* " == *"/train_addition "* ]] || continue
            program=${flags%% *} program=${program#@} flags=${flags#* }
        fi
        n=$((n + 1))
        got=$(weights "${@/%\/train_addition//$program}" $flags)
        [ "$got" = "$want" ] || differs+=" $name (${got:-$(tail -n 1 "$out/stderr")})"
    done < <(cat tests/golden/runs.txt tests/golden/nets.txt)
    if [ -z "$differs" ] && [ "$n" -gt 0 ]; then pass "$line" "$n of $n equal"; else fail "$line" "$differs"; fi
}

# build DIR MAKE-ARGUMENTS...: the library and the program of the golden runs, below $out.
build() {
    local dir=$out/$1
    shift
    make -j"$(nproc)" BUILD="$dir" "$@" "$dir"/{train_addition,digits,vae} "$dir/libtally.so" > "$dir.log" 2>&1
}

# unfused DIR: its program holds no instruction that fuses a product with a sum and a difference by turns. Some
# vectorisers make them whatever -ffp-contract says, and the golden runs need not pass where they stand.
unfused() {
    objdump -d --no-show-raw-insn "$out/$1/train_addition" > "$out/$1.asm" && grep -q 'ret' "$out/$1.asm" && ! grep -qE 'fmaddsub|fmsubadd' "$out/$1.asm"
    local found=$?
    rm -f "$out/$1.asm"
    return $found
}

# built LINE DIR MAKE-ARGUMENTS...: builds, then looks at the code and runs.
built() {
    local line=$1 dir=$2
    shift 2
    if build "$dir" "$@"; then
        unfused "$dir" || { fail "$line" "the code fuses products with sums (fmaddsub)"; return; }
        equal "$line" '*' "$out/$dir/train_addition"
    else
        fail "$line" "the build stops: $(grep -m 1 -E 'error|undefined' "$out/$dir.log")"
    fi
}

# refused LINE DIR CFLAGS: the build must stop, and say why.
refused() {
    local line=$1 log=$out/$2.log reason
    if make BUILD="$out/$2" CFLAGS="$3" "$out/$2/tensor/array.o" > "$log" 2>&1; then
        fail "$line" "the build goes on"
    elif reason=$(grep -m 1 -o "Tally's bits need[^\"]*" "$log"); then
        pass "$line" "stops: $reason"
    else
        fail "$line" "stops without the reason: $(grep -m 1 error "$log")"
    fi
}

# linked PROGRAM FLAGS...: the program again from the objects of the build $from, linked otherwise, by $linker.
linked() {
    local program=$out/$1
    shift
    "$linker" -o "$program" "$out/$from"/examples/{train_addition,example,example_flags,example_files,example_data}.o "$out/$from/libtally_group.a" "$@" -L"$out/$from" -Wl,-rpath,"$(realpath "$out/$from")" $libs -pthread > "$program.log" 2>&1
}

have() { command -v "$1" > /dev/null; }

# ---- the axes ----

libs="-l:libtally.a -ljemalloc -lblis -ljansson -lcrypto -lz -lm"
build base CC=gcc || { echo "the library does not build: $out/base.log"; exit 1; }
golden=$out/base/train_addition linker=gcc from=base

axis "compiler and optimisation"
for cc in gcc clang; do
    have $cc || { skip "$cc" "no compiler"; continue; }
    for o in -O0 -O1 -O2 -O3; do
        built "$cc $o, the kernels too" $cc$o CC=$cc CFLAGS=$o KERNEL_OPT=$o
    done
    built "$cc -O2 -march=native" $cc-native CC=$cc CFLAGS="-O2 -march=native"
done

axis "flags that change arithmetic, added by the user"
loose="-Ofast -ffast-math -funsafe-math-optimizations -fassociative-math -freciprocal-math -fno-signed-zeros -ffinite-math-only"
built "gcc -ffast-math" gcc-fast CC=gcc CFLAGS="-O2 -ffast-math"
built "gcc -Ofast and its parts, -mfma -ffp-contract=fast ..." gcc-loose CC=gcc \
      CFLAGS="$loose -fsingle-precision-constant -mfma -ffp-contract=fast -mrecip -funsigned-char"
if have clang; then
    built "clang -Ofast and its parts, -ffp-model=fast ..." clang-loose CC=clang \
          CFLAGS="$loose -ffp-model=fast -fapprox-func -fdenormal-fp-math=positive-zero -mfma -ffp-contract=fast -funsigned-char"
else
    skip "clang -Ofast and its parts" "no compiler"
fi
refused "gcc -mfpmath=387" 387 "-O2 -mfpmath=387"
refused "gcc -mfpmath=both" both "-O2 -mfpmath=both"

axis "linking"
linked static && equal "libtally.a, gcc" '*' "$out/static" || fail "libtally.a, gcc" "does not link"
libs=${libs/-l:libtally.a/-l:libtally.so}
linked shared && equal "libtally.so, gcc" '*' "$out/shared" || fail "libtally.so, gcc" "does not link"
if have clang; then # both the library and the program of the -O2 build above, its kernels at -O2 too
    linker=clang from=clang-O2
    linked shared-clang && equal "libtally.so, clang" '*' "$out/shared-clang" || fail "libtally.so, clang" "does not link"
    linker=gcc from=base
else
    skip "libtally.so, clang" "no compiler"
fi
libs=${libs/-l:libtally.so/-l:libtally.a}
built "gcc -flto" gcc-lto CC=gcc CFLAGS="-O2 -flto=auto"
built "gcc -flto -Ofast" gcc-lto-fast CC=gcc CFLAGS="-Ofast -flto=auto"
if have clang && have "$(clang -print-prog-name=llvm-ar)" && [ -e "$(clang -print-resource-dir)/../../LLVMgold.so" ]; then
    built "clang -flto" clang-lto CC=clang AR="$(clang -print-prog-name=llvm-ar)" CFLAGS="-O2 -flto"
else
    skip "clang -flto" "no plug-in for the linker"
fi
built "without jemalloc and BLIS" bare CC=gcc JEMALLOC=0 BLIS=0

axis "vector level"
cat > "$out/levels.c" <<'C'
#include <stdio.h>
#include "tensor/isa.h"
int main(void)
{
    for (int i = 0; tl_isa_at(i) != NULL; i++)
        puts(tl_isa_at(i)->name);
    return 0;
}
C
levels=$(gcc -I. -o "$out/levels" "$out/levels.c" -L"$out/base" $libs -pthread && "$out/levels")
[ -n "$levels" ] || fail "levels" "cannot be listed"
for level in $levels; do
    equal "TL_ISA=$level" '*' env TL_ISA=$level "$golden"
done
for level in v2 v3 v4; do
    [[ $(uname -m) != x86_64 || " "$levels" " == *$level* ]] || skip "TL_ISA=$level" "not this processor"
done

axis "threads ($(nproc) cores)"
for n in 1 2 3 8; do
    equal "$n" '*' env TL_THREADS=$n "$golden"
done

axis "micro-batches"
for n in 1 2 4 8; do
    equal "of $n" '*' "$golden" --threads 2 --micro-batch $n
done
equal "of 16, the wide runs" '*-wide' "$golden" --micro-batch 16

axis "called or compiled (traced once, planned, replayed)"
equal "--compile" '*' "$golden" --compile
equal "--compile, micro-batches of 4, 3 threads" '*' "$golden" --compile --micro-batch 4 --threads 3

axis "stop and resume"
resumed() { # [AT] FLAGS...
    local at=$1
    shift
    "$golden" "$@" --stop-at "$at" --micro-batch 4 --save "$out/stopped" > /dev/null && "$golden" "$@" --resume "$out/stopped"
}
for at in 1 77; do
    equal "after step $at" '*' resumed $at
done
equal "after step 99 of 100" 'lstm-*' resumed 99
equal "after step 199" '!(lstm-*)' resumed 199

axis "processes"
ranks() { local mpi=$1; shift; OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TL_THREADS=1 "mpirun.$mpi" "$@" < /dev/null; }
for mpi in openmpi mpich; do
    have mpirun.$mpi || { skip "$mpi" "no mpirun.$mpi (make deps-mpi)"; continue; }
    rm -f "$out"/base/{train_addition,digits,vae} # linked with MPI, and again without
    build base CC=gcc TL_MPI=1 MPI=$mpi && mkdir -p "$out/$mpi" && mv "$out"/base/{train_addition,digits,vae} "$out/$mpi/" ||
        fail "$mpi" "does not build"
    equal "3 under $mpi" '*' ranks $mpi $([ $mpi = mpich ] || echo --oversubscribe) -n 3 "$out/$mpi/train_addition"
    equal "7 under $mpi, micro-batches of 4" '!(*-wide)' ranks $mpi $([ $mpi = mpich ] || echo --oversubscribe) -n 7 "$out/$mpi/train_addition" --micro-batch 4
done
build base CC=gcc || fail "base" "does not build again"

axis "the process's floating-point environment"
linked ftz -ffast-math -O2 && nm "$out/ftz" | grep set_fast_math > /dev/null && equal "flush to zero (linked with -ffast-math)" '*' "$out/ftz" || fail "flush to zero" "does not link, or does not flush"
for mode in UPWARD DOWNWARD TOWARDZERO; do
    printf '#include <fenv.h>\nstatic __attribute__((constructor)) void set(void) { fesetround(FE_%s); }\n' $mode > "$out/$mode.c"
    linked $mode "$out/$mode.c" && equal "rounding FE_$mode" '*' "$out/$mode" || fail "rounding FE_$mode" "does not link"
done

# What the golden runs have no flag for: the suite's training runs, one hash each.
suite() { # LINE GROUP TEST
    if "$runner" "$2" > "$out/suite.log" 2>&1 && grep -q "OK *\] $3\$" "$out/suite.log"; then
        pass "$1" "$3"
    else
        fail "$1" "$(grep -m 1 'FAILED' "$out/suite.log" || tail -n 1 "$out/suite.log")"
    fi
}

axis "padding, and a forked child (the training runs of the suite: make test)"
suite "padding left and right, batches, splits, order" invariant_training test_axes
suite "all of these at once" invariant_training test_mixtures
suite "a forked child" invariant_training test_fork

axis "emulated processors (the wide runs left out)"
for cross in aarch64 riscv64 s390x; do
    if ! have $cross-linux-gnu-gcc || ! have qemu-$cross || [ ! -e build/sysroot/$cross ]; then
        skip $cross "no cross compiler, emulator or libraries (make deps-cross)"
    elif make -j"$(nproc)" CROSS=$cross build/$cross/{train_addition,digits,vae} > "$out/$cross.log" 2>&1; then
        equal $cross '!(*-wide)' $(make -s CROSS=$cross emulator) build/$cross/train_addition
    else
        fail $cross "the build stops: $(grep -m 1 -E 'error|undefined' "$out/$cross.log")"
    fi
done

printf '\n%d not run\n%d passed, %d failed\n' $not_run $passed $failed
[ $failed -eq 0 ]
