#!/usr/bin/env bash
# usage: broken.sh BUILD [CLAIM ...]      (make broken, ARGS="6.1 12.3")
#
# Claims of NUMERICS.md broken on purpose, one at a time: each break is a change of text in a copy of
# the sources, from which the suite is built, and the group that holds the claim must fail. First the
# same groups must pass on the copy unchanged. BUILD is a relative path and holds tests/runner, so that
# only what a change touches is compiled again. With numbers of claims as arguments only those are broken.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 here=$PWD broken=0 noticed=0
shift
wanted=" $* "
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

# The copy, times included.
mkdir -p "$copy/tree/$build" && cp -a Makefile README.md tally*.h tensor autograd ops nn tests examples "$copy/tree"
cp -a "$build"/{tensor,autograd,ops,nn,tests,libtally.a} "$copy/tree/$build"
cd "$copy/tree" || exit 1
touch tests/test_symbols.c # it names the library of its build

# runner GROUP...: builds and runs.
runner() { make BUILD="$build" "$build/tests/runner" > make.log 2>&1 && timeout 300 "./$build/tests/runner" "$@" > test.log 2>&1; }

# breaks CLAIM NAME GROUP FILE FROM TO [FROM TO ...]: every FROM in FILE becomes TO; there must be
# one. GROUP must then fail, by tests that ran.
breaks() {
    local claim=$1 name=$2 group=$3 file=$4
    shift 4
    [ "$wanted" = "  " ] || [[ "$wanted" == *" $claim "* ]] || return 0
    broken=$((broken + 1))
    printf '%-5s %s: ' "$claim" "$name"
    while [ $# -gt 0 ]; do
        FROM=$1 TO=$2 perl -0pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/g or exit 1' "$file" || { echo "not built: $file has no '$1'"; return; }
        shift 2
    done
    [ "$file" != Makefile ] || touch tensor/kernels/rows.k.c
    if runner "$group"; then
        echo "NOT NOTICED by the group $group"
    elif ! grep -qE '^[0-9]+ passed, [1-9][0-9]* failed' test.log 2> /dev/null; then
        echo "the suite did not run: $(grep -m 1 error make.log)"
    else
        noticed=$((noticed + 1))
        echo "noticed by $group: $(sed -n 's/^\[  FAILED  \] \([a-z].*\)/\1/p' test.log | sort -u | head -n 2 | paste -sd' ')"
    fi
    rm -f test.log
    cp "$here/$file" "$file" # newer than what was built from the broken one
    [ "$file" != Makefile ] || touch tensor/kernels/rows.k.c
}

if [ "$wanted" = "  " ]; then
    runner reference gemm tape symbols math rng training half_rounding hash environment rotary_table fuse simplify optimizers ||
        { echo "the suite fails already: $(tail -n 1 test.log)"; exit 1; }
    echo "unchanged: $(tail -n 1 test.log)"
fi

half=tensor/kernels/half.h sums=tensor/kernels/sums.t.h tile=tensor/kernels/gemm_tile.t.h
arows=tensor/kernels/attention_rows.t.h

# 1: storage and arithmetic
breaks 1.1 "ties go up, not to even" half_rounding $half '0x7fffu + ((u >> 16) & 1)' '0x8000u'
breaks 1.2 "contraction on" reference Makefile '-ffp-contract=off' '-ffp-contract=fast'
breaks 1.3 "fma without hardware rounds twice" gemm tensor/kernels/gemm_vec.t.h 'u |= inexact & 1;' ''
breaks 1.4 "the caller's flush-to-zero stays on" environment tensor/threads.c 'if ((saved.word & ~0x3fu) != MXCSR_DEFAULT)
        _mm_setcsr(MXCSR_DEFAULT);' ''
breaks 1.6 "-0 stays" gemm $tile 'acc[i][v] + zero' 'acc[i][v]' 'acc[i][LAST] + zero' 'acc[i][LAST]'
breaks 1.7 "f64 goes to f16 through f32" half_rounding $half 'return tl_f32_to_f16(tl_f64_to_f32_odd(d));' 'return tl_f32_to_f16((float)d);'

# 2: elementary functions
breaks 2.1 "a coefficient of exp a little off" math tensor/kernels/math32_exp.h '0x1.555555555555cp-3' '0x1.555555565555cp-3'
breaks 2.5 "a libm call" symbols tensor/kernels/math32_exp.h 'return (float)tl_double_of(tl_bits64(1.0 + e.p) + e.k52);' '(void)e;
    return expf(x);'
breaks 2.6 "silu's gradient in another order" reference tensor/kernels/pointwise.t.h 'dy[at + i] * (s[i] * (1' '(dy[at + i] * s[i]) * ((1'
breaks 2.7 "swiglu's gradient in another order" reference tensor/kernels/swiglu.t.h '(g * b[at + i]) * (s[i] *' 'g * (b[at + i] * s[i] *'
breaks 2.8 "softplus without its branch" reference tensor/kernels/pointwise.t.h '(x[at + i] > 0 ? x[at + i] : 0) + e[i]' 'x[at + i] - (x[at + i] < 0 ? x[at + i] : 0) + e[i] * 1.0000001f'
breaks 2.9 "gelu divides by the root of 2" reference tensor/kernels/pointwise.t.h 'x[at + i] * (T)0x1.6a09e667f3bcdp-1' 'x[at + i] / (T)0x1.6a09e667f3bcdp+0'
breaks 2.10 "gelu_tanh's cube in another order" reference tensor/kernels/pointwise.t.h '((x[i] * x[i]) * x[i])' '(x[i] * (x[i] * x[i] * (T)0.044715) / (T)0.044715)'
breaks 2.13 "a remainder has the sign of what is divided" reference tensor/kernels/pointwise.k.c '(r < 0) != (b[i] < 0) ? r + b[i]' '(r < 0) != (b[i] < 0) ? r'

# 3: sums
breaks 3.1 "an extra lane" reference $sums 'T lane[32];' 'T lane[32], extra = 0;' 'lane[i] += term[i];' 'extra += term[i];' \
    '(lane[0] + lane[1]) + 0' '((lane[0] + lane[1]) + extra) + 0'
breaks 3.1 "another tree" reference $sums 'lane[i] += lane[i + 16];' 'lane[i] = lane[2 * i] + lane[2 * i + 1];'
breaks 3.2 "a fold in f32" reference $sums 'acc[i] = (acc[i] + (double)x[i]) + 0;' 'acc[i] = (double)((float)acc[i] + (float)x[i]) + 0;'
breaks 3.4 "a finished sum added instead of continued" gemm $tile 'if (t->accumulate) {' 'if (0) {' \
    'acc[i][v] + zero' 'acc[i][v] + (t->accumulate ? G(load)(c + v * G(LANES)) : zero)' \
    'acc[i][LAST] + zero, n' 'acc[i][LAST] + (t->accumulate ? G(load_n)(c + LAST * G(LANES), n) : zero), n' \
    'acc[i][LAST] + zero)' 'acc[i][LAST] + (t->accumulate ? G(load)(c + LAST * G(LANES)) : zero))'

# 4: reductions
breaks 4.2 "-0 equals +0 in maximum" reference tensor/kernels/pointwise.t.h 'm = a[i] == b[i] && a[i] == 0 ? s : m;' ''
breaks 4.4 "min takes +0 over -0" reference $sums 'return -F(extreme)(n, x, -1);' 'return -F(extreme)(n, x, -1) + 0;'

breaks 4.5 "a variance by the reciprocal of n" reference ops/sum.c 'tl_div_at(at, sum, tl_scalar_at(at, tl_dtype_compute(dtype), n - correction))' 'tl_scale_at(at, sum, 1 / (n - correction))'
breaks 4.7 "equal elements change places" reference ops/sort.c 'a[i].key <= a[k].key' 'a[i].key < a[k].key'

# 5: matmul
breaks 5.6 "alpha before the product" reference ops/matmul.c 'y = tl_scale_at(at, y, alpha);' 'y = tl_scale_at(at, tl_scale_at(at, y, alpha / 3), 3);'
breaks 5.8 "rows of a kernel before channels" reference ops/conv.c 'for (int64_t c = 0; c < w->dim[2]; c++)
        for (int64_t i = 0; i < w->dim[3]; i++)' 'for (int64_t i = 0; i < w->dim[3]; i++)
        for (int64_t c = 0; c < w->dim[2]; c++)'
breaks 4.8 "the last of equals is pooled" reference ops/pool.c 'best = rank > most' 'best = rank >= most'

# 6: rows
breaks 6.1 "rstd * gamma first" reference tensor/kernels/norm.t.h 'y[i] = (x[i] * k) * gamma[i];' 'y[i] = x[i] * (k * gamma[i]);'
breaks 6.2 "the mean by a reciprocal" reference tensor/kernels/norm.t.h 'dx[k] = rstd * (dy[k] * gamma[k] - (x[k] * rstd) * m);' 'dx[k] = rstd * (dy[k] * gamma[k]) - rstd * ((x[k] * rstd) * m);'
breaks 6.3 "softmax divides" reference tensor/kernels/softmax.t.h 'T r = 1 / F(exp_row)(n, x, F(max)(n, x), y);
    for (int64_t i = 0; i < n; i++)
        y[i] = y[i] * r;' 'T r = F(exp_row)(n, x, F(max)(n, x), y);
    for (int64_t i = 0; i < n; i++)
        y[i] = y[i] / r;'
breaks 6.5 "cross entropy in another order" reference tensor/kernels/softmax.t.h 'return l - (z[t] - m);' 'return (l + m) - z[t];'
breaks 6.7 "layer norm's beta first" reference tensor/kernels/norm.t.h 'y[i] = (x[i] - m) * rstd;' 'y[i] = x[i] * rstd - m * rstd;'
breaks 6.9 "smoothing in another order" reference tensor/kernels/softmax.t.h 'return hit * (l - (z[t] - m)) + rest * mean;' 'return (l - (z[t] - m)) + rest * (mean - (l - (z[t] - m)));'
breaks 6.13 "logsumexp subtracts no maximum" reference ops/softmax.c 'm = tl_where_at(at, finite, m, tl_fill_at(at, c, TL_SCALAR, 0));' 'm = tl_fill_at(at, c, TL_SCALAR, 0);'

# 7: attention
breaks 7.1 "probabilities by division" reference $arows 'const A(vec) r = A(spread)(1 / A(lanes)(e, NULL, n));' 'const A(vec) r = A(spread)(A(lanes)(e, NULL, n));' 'A(store)(e + j, A(load)(e + j) * r);' 'A(store)(e + j, A(load)(e + j) / r);'
breaks 7.2 "the scale before the product" reference $arows '(A(load)(p + j) * (A(load)(dp + j) - sum)) * by' 'A(load)(p + j) * ((A(load)(dp + j) - sum) * by)'
breaks 7.3 "softcap without its second factor" reference ops/attention.c 's = tl_scale_at(at, tl_tanh_at(at, tl_scale_at(at, s, uncap)), o.softcap);' 's = tl_tanh_at(at, tl_scale_at(at, s, uncap));'

# 8: rotary embedding
breaks 8.1 "a product taken with the other half's factor" reference tensor/kernels/rotary.t.h 'ylo[i] = r1[i] * x[i] + r2[i] * -x[h + i];' 'ylo[i] = r1[i] * x[i] + r2[h + i] * -x[h + i];'
breaks 8.2 "the gradient by -sin" reference tensor/kernels/rotary.t.h 'ylo[i] = r1[i] * x[i] - -(r2[h + i] * x[h + i]);' 'ylo[i] = r1[i] * x[i] - -(r2[i] * x[h + i]);'
breaks 8.3 "the exponent rounded in another order" rotary_table ops/rotary_table.c '-((double)(2 * k) / (double)dim) * log_base' '-((double)(2 * k) * log_base) / (double)dim'
breaks 8.6 "the mixture in another order" rotary_table ops/rotary_table.c '(1 - mix) * (f / s->factor) + mix * f' 'f / s->factor + mix * (f - f / s->factor)'

# 9: gather, scatter
breaks 9.1 "rows added from the last" reference ops/embedding.c 'for (int64_t i = 0; i < count; i++, tl_cursor_next(&ids)) {' 'for (int64_t i = count; i-- > 0;) {
        ids = tl_cursor_at(j->ids, j->ids->ndim, i);'

# 10: gradients
breaks 10.1 "arguments recorded in another order" tape autograd/order.c 'int k = n->next++;' 'int k = n->n_in - ++n->next;'
breaks 10.2 "cotangents added from the last" tape autograd/walk.c '*(b->last == NULL ? &b->first : &b->last->next) = &e[k];' 'e[k].next = b->first;
                b->first = &e[k];'
breaks 10.3 "uses of a sample in another order" folds autograd/batch/fold.c 'all[u - p->first] =' 'all[p->end - 1 - u] ='
breaks 10.3 "accumulators from elsewhere are forgotten" accumulate autograd/accumulators.c '*out = g->acc[k].sum;' '*out = g->acc[k].sum, g->acc[k].open = false;'
breaks 10.4 "weights made of weights go back at each use" derived autograd/batch/derived.c 'return v != NULL && v->fixed && v->needs_grad && v->node >= 0;' 'return v != NULL && v->fixed && v->needs_grad && v->node == -2;'
breaks 10.4 "micro-batches that run other programs pass" splits autograd/batch/prints.c '    if (x->ragged || (i == n' '    if (i >= 0 || x->ragged || (i == n'

# 11: random numbers
breaks 11.1 "nine rounds of Philox" rng tensor/rng.c 'enum { ROUNDS = 10 };' 'enum { ROUNDS = 9 };'
breaks 11.1 "a seed of four bytes" rng tensor/rng.c 'tl_sha256_feed_u64(&ctx, seed);' 'tl_sha256_feed_u64(&ctx, (uint32_t)seed);'
breaks 11.3 "dropout keeps at u > p" rng ops/random.c '(double)u[i] >= j->p' '(double)u[i] > j->p' 
breaks 11.4 "a normal draw is the next sample's" rng ops/random.c '*)tl_array_at(p->sample, row);' '*)tl_array_at(p->sample, row) + 1;'

# 12: training
breaks 12.2 "the norm's squares in f32" training $sums 'q[k] = (double)x[i + k] * (double)x[i + k];' 'q[k] = (double)(x[i + k] * x[i + k]);'
breaks 12.3 "AdamW's decay multiplied in first" training tensor/kernels/optimize.t.h 'p[i] = p[i] - (lr * (u + wd * p[i]));' 'p[i] = (p[i] - p[i] * (lr * wd)) - lr * u;'
breaks 12.3 "eps inside the root" training tensor/kernels/optimize.t.h '(SQRT(v[i] * c2) + eps)' 'SQRT(v[i] * c2 + eps)'
breaks 12.4 "momentum after the step" optimizers tensor/kernels/optimize.t.h 'b[i] = (mu * b[i]) + gi;' 'b[i] = mu * (b[i] + gi);'
breaks 12.5 "cosine over T instead of T - w" training nn/opt.c '(double)less(step, s->warmup) / (double)less(s->total, s->warmup)' '(double)less(step, s->warmup) / (double)s->total'

# 13: graphs
breaks 13.7 "x + +0 taken for x" simplify ops/arith.c 'is(c[1], -0.0) ? 0' '(is(c[1], -0.0) || is(c[1], 0.0)) ? 0'
breaks 13.8 "a loop does not round on the way" fuse autograd/graph/fused.c 'if (half)' 'if (half && last)'

echo "$noticed passed, $((broken - noticed)) failed"
[ $broken -gt 0 ] && [ $broken -eq $noticed ]
