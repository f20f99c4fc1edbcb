#!/usr/bin/env bash
# usage: contract.sh BUILD      (make contract)
#
# op x axis, from what the tests wrote down while they ran (tests/support/contract.h):
#   proved  all inputs there are were tried: f16 and bf16 in this run, f32 in the runs of make exhaustive whose
#           digests are in tests/golden/math32.txt, of the very sources of this build: their hash stands there too
#   proved a  with the limit a below the table (pow: for some exponents)
#   tested  compared on this axis in this run, and equal
#   - a     not claimed, for the reason a below the table
#   FAILED  compared, and not equal
#   ?       no test has an answer
# An axis of several parts (levels, padding, terms) is tested when all of its parts are.
# Fails when the tests do, when an answer is FAILED or ?, and when an op of ops/list.h was compared with nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
verdict=0

echo "comparing every op on every axis: a minute or two" >&2
TL_CONTRACT=$dir/ran "$1/tests/runner" reference invariance math_half contract > "$dir/log" 2>&1 || { verdict=1; tail -n 20 "$dir/log"; }
{ sed -n '/define TL_TILE_UNARY/,/clang-format on/p' tensor/kernels/pointwise.t.h
    sed -n '/define TL_OP_LIST/,/^$/p' ops/list.h; } | grep -o 'X([a-z_0-9]\{2,\})' | sed 's/X(\(.*\))/\1\tlisted/' > "$dir/ops"

awk -F'\t' '
    # The column of an axis: the parts of one subject share it.
    function column(axis) { return axis ~ /^(level|padding|terms)[ -]/ ? substr(axis, 1, match(axis, /[ -]/) - 1) : axis }
    function answer(o, a,    k, c, best, part) {
        split(parts[a], part, ",")
        for (k = 1; k in part; k++) {
            c = (o, part[k]) in cell ? cell[o, part[k]] : "?"
            if (k == 1 || rank[c] > rank[best]) best = c
        }
        return best
    }
    function note(sign, reason) {
        if (!(reason in letter)) { letter[reason] = substr("abcdefghijklmnopqrstuvwxyz", ++notes, 1); text[notes] = reason }
        return sign " " letter[reason]
    }
    function shown(c, o, a) {
        if (c == "none") return note("-", because[o, a])
        return c == "proved" && (o, a) in limit ? note(c, limit[o, a]) : c
    }
    function print_line(line) { sub(/ +$/, "", line); print line }
    function wrapped(first, words,    n, w, i, line) {
        n = split(words, w, " ")
        line = first
        for (i = 1; i <= n; i++) {
            if (length(line) + length(w[i]) + 1 > 118) { print line; line = "       " }
            line = line " " w[i]
        }
        print line
    }
    BEGIN { rank["proved"] = 1; rank["tested"] = 2; rank["none"] = 3; rank["?"] = 4; rank["FAILED"] = 5 }
    $2 == "listed" { op[++ops] = $1; next }
    !seen[$2]++ { name = column($2); parts[name] = parts[name] == "" ? $2 : parts[name] "," $2; if (parts[name] == $2) axis[++axes] = name }
    $3 == "failed" { cell[$1, $2] = "FAILED"; compared[$1] = 1; next }
    $3 == "none" { if (!(($1, $2) in cell)) cell[$1, $2] = "none"; because[$1, column($2)] = $4; next }
    $3 == "only" { limit[$1, column($2)] = $4; next }
    cell[$1, $2] != "FAILED" { cell[$1, $2] = $2 ~ /^all / ? "proved" : "tested"; compared[$1] = 1 }
    END {
        for (a = 1; a <= axes; a++) { # by name: the order in which tests run means nothing
            for (b = a; b > 1 && axis[b] < axis[b - 1]; b--) { c = axis[b]; axis[b] = axis[b - 1]; axis[b - 1] = c }
        }
        for (row = 1; row <= 2; row++) {
            line = sprintf("%-18s", row == 1 ? "" : "op")
            for (a = 1; a <= axes; a++) {
                n = match(axis[a], /[ -]/)
                split(n ? substr(axis[a], 1, n) "|" substr(axis[a], n + 1) : "|" axis[a], head, "|")
                width[a] = length(head[1]) > length(head[2]) ? length(head[1]) : length(head[2])
                if (width[a] < 6) width[a] = 6
                if (axis[a] ~ /^all /) width[a] = 8
                line = line sprintf(" %-" width[a] "s", head[row])
            }
            print_line(line)
        }
        for (o = 1; o <= ops; o++) {
            line = sprintf("%-18s", op[o])
            for (a = 1; a <= axes; a++) {
                c = answer(op[o], axis[a])
                count[c]++
                line = line sprintf(" %-" width[a] "s", shown(c, op[o], axis[a]))
            }
            print_line(line)
        }
        print "\nproved: all inputs that there are, tried (f32: of these sources, when tests/golden/math32.txt was written); tested: compared in this run,"
        print "and equal; -: not claimed; a letter says why not, or within what limit:"
        for (k = 1; k <= notes; k++)
            wrapped("    " letter[text[k]] "  ", text[k])
        print "\nwhat an axis is made of:"
        for (a = 1; a <= axes; a++)
            if (index(parts[axis[a]], ",")) { c = parts[axis[a]]; gsub(axis[a] "[ -]", "", c); gsub(",", ", ", c); print "    " axis[a] ": " c }
        for (o = 1; o <= ops; o++)
            if (!(op[o] in compared)) { print op[o] ": compared with nothing"; bad = 1 }
        printf "\n%d ops, %d axes: %d proved, %d tested, %d not claimed, %d failed, %d without an answer\n", \
            ops, axes, count["proved"], count["tested"], count["none"], count["FAILED"], count["?"]
        exit bad || ops == 0 || axes == 0 || notes > 26 || count["FAILED"] + count["?"] > 0
    }' "$dir/ops" "$dir/ran" || verdict=1
exit $verdict
