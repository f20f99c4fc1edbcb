#!/usr/bin/env bash
# usage: broken.sh BUILD      (make broken)
#
# Kernels broken on purpose: each break is a change of text in a copy of the sources, from which the suite is
# built, and the group that holds the claim must fail. First the same groups must pass on the copy unchanged.
# BUILD is a relative path and holds tests/runner, so that only what a change touches is compiled again.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 here=$PWD broken=0 noticed=0 applied=yes
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

# A fresh copy of sources and objects, times included, becomes the working directory.
fresh() {
    applied=yes
    rm -rf "${copy:?}/tree" && mkdir -p "$copy/tree/$build" && cd "$here" || exit 1
    cp -a Makefile README.md tally.h tensor autograd ops nn tests examples "$copy/tree"
    cp -a "$build"/{tensor,autograd,ops,nn,tests,libtally.a} "$copy/tree/$build"
    cd "$copy/tree" || exit 1
    touch tests/test_symbols.c # it names the library of its build
}

# runner GROUP...: builds and runs; says the last line.
runner() { make -j"$(nproc)" BUILD="$build" "$build/tests/runner" > make.log 2>&1 && "./$build/tests/runner" "$@" > test.log 2>&1; }

# change FILE FROM TO: every FROM in FILE becomes TO; there must be one.
change() {
    FROM=$2 TO=$3 perl -0pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/g' "$1"
    if cmp -s "$1" "$here/$1"; then
        applied="$1 has no '$2'"
    fi
}

# breaks NAME GROUP: the tree is changed; GROUP must now fail, by tests that ran.
breaks() {
    broken=$((broken + 1))
    if [ "$applied" != yes ]; then
        echo "$1: not built: $applied"
    elif runner "$2"; then
        echo "$1: NOT NOTICED by the group $2"
    elif ! grep -qE '^[0-9]+ passed, [1-9][0-9]* failed' test.log 2> /dev/null; then
        echo "$1: the suite did not run: $(grep -m 1 error make.log)"
    else
        noticed=$((noticed + 1))
        echo "$1: noticed by the group $2: $(sed -n 's/^\[  FAILED  \] \([a-z].*\)/\1/p' test.log | sort -u | head -n 3 | paste -sd' ')"
    fi
}

fresh
runner reference gemm tape symbols || { echo "the suite fails already: $(tail -n 1 test.log)"; exit 1; }
echo "unchanged: $(tail -n 1 test.log)"

fresh
change tensor/kernels/rows.t.h 'T lane[32];' 'T lane[32], extra = 0;'
change tensor/kernels/rows.t.h 'lane[i] += term[i];' 'extra += term[i];'
change tensor/kernels/rows.t.h '(lane[0] + lane[1]) + 0' '((lane[0] + lane[1]) + extra) + 0'
breaks "an extra lane" reference

fresh
change tensor/kernels/rows.t.h 'lane[i] += lane[i + 16];' 'lane[i] = lane[2 * i] + lane[2 * i + 1];'
breaks "another tree" reference

fresh
change Makefile '-ffp-contract=off' '-ffp-contract=fast'
touch tensor/kernels/rows.k.c
breaks "contraction on" reference

fresh
change tensor/kernels/math32_exp.h 'return (float)tl_double_of(tl_bits64(1.0 + e.p) + e.k52);' '(void)e; return expf(x);'
breaks "a libm call" symbols

fresh
change tensor/kernels/gemm_tile.t.h 'if (t->accumulate) {' 'if (0) {'
change tensor/kernels/gemm_tile.t.h 'acc[i][v] + zero' 'acc[i][v] + (t->accumulate ? G(load)(c + v * G(LANES)) : zero)'
change tensor/kernels/gemm_tile.t.h 'acc[i][LAST] + zero, n' 'acc[i][LAST] + (t->accumulate ? G(load_n)(c + LAST * G(LANES), n) : zero), n'
change tensor/kernels/gemm_tile.t.h 'acc[i][LAST] + zero)' 'acc[i][LAST] + (t->accumulate ? G(load)(c + LAST * G(LANES)) : zero))'
breaks "a finished sum added instead of continued" gemm

fresh
change autograd/order.c '        stack[depth++] = (frame){(uint32_t)p, 0};
    }
' '        stack[depth++] = (frame){(uint32_t)p, 0};
    }
    *n = 0;
    for (uint32_t i = 0; i < total; i++)
        if (seen[i])
            (*order)[(*n)++] = i;
'
breaks "arguments recorded in another order" tape

echo "$broken broken, $noticed noticed"
[ $broken -eq $noticed ]
