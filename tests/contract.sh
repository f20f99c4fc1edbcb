#!/usr/bin/env bash
# usage: contract.sh BUILD      (make contract)
#
# op x axis, from what the tests wrote down while they ran (tests/support/contract.h):
#   proved  all inputs there are were tried: f16 and bf16 in this run, f32 in the runs of make exhaustive whose
#           digests are in tests/golden/math32.txt (pow: for the exponents named there)
#   tested  compared on this axis in this run, and equal
#   -       not claimed; the reasons that tests give stand below
#   FAILED  compared, and not equal
# Fails when the tests do, or an op of ops/list.h was compared with nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
verdict=0

TL_CONTRACT=$dir/ran "$1/tests/runner" reference invariance math_half > "$dir/log" 2>&1 || { verdict=1; tail -n 20 "$dir/log"; }
sed -n 's/^\(pow\|[a-z0-9]*\).* [0-9a-f]\{64\}$/\1\tall f32\tran/p' tests/golden/math32.txt >> "$dir/ran"
sed -n '/define TL_OP_LIST/,/^$/p' ops/list.h | grep -o 'X([a-z_0-9]\{2,\})' | sed 's/X(\(.*\))/\1\tlisted/' > "$dir/ops"
cut -f2 "$dir/ran" | sort -u > "$dir/axes"

awk -F'\t' '
    $2 == "listed" { op[++ops] = $1; next }
    NF == 1 { axis[++axes] = $1; next }
    $3 == "none" { because[$2 ": " $4] = because[$2 ": " $4] " " $1; next }
    $3 == "failed" { cell[$1, $2] = "FAILED"; compared[$1] = 1; next }
    cell[$1, $2] != "FAILED" { cell[$1, $2] = $2 ~ /^all / ? "proved" : "tested"; compared[$1] = 1 }
    END {
        for (a = 1; a <= axes; a++)
            printf "%c  %s\n", 64 + a, axis[a]
        printf "\n%-20s", "op"
        for (a = 1; a <= axes; a++)
            printf " %-6c", 64 + a
        print ""
        for (o = 1; o <= ops; o++) {
            printf "%-20s", op[o]
            for (a = 1; a <= axes; a++) {
                c = (op[o], axis[a]) in cell ? cell[op[o], axis[a]] : "-"
                count[c]++
                printf " %-6s", c
            }
            print ""
            if (!(op[o] in compared)) { print op[o] ": compared with nothing"; bad = 1 }
        }
        print "\nnot claimed, and why:"
        for (b in because)
            print "  " b " (" substr(because[b], 2) ")" | "sort | fold -s -w 150"
        close("sort | fold -s -w 150")
        printf "\n%d ops, %d axes: %d proved, %d tested, %d not claimed, %d failed\n", ops, axes, count["proved"], count["tested"], count["-"], count["FAILED"]
        exit bad || ops == 0 || count["FAILED"] > 0
    }' "$dir/ops" "$dir/axes" "$dir/ran" || verdict=1
exit $verdict
