/* optimize.t.h: optimizer updates of one compute type (NUMERICS 12.3, 12.4); every operation rounds
 * once. Included by rows.k.c. */

static void F(adamw)(int64_t n, T *restrict p, const T *restrict g, T *restrict m, T *restrict v,
                     const tl_adamw_step *s)
{
    const T b1 = (T)s->b1, b1c = (T)s->b1c, b2 = (T)s->b2, b2c = (T)s->b2c, c1 = (T)s->c1,
            c2 = (T)s->c2, eps = (T)s->eps, lr = (T)s->lr, wd = (T)s->wd, l2 = (T)s->l2,
            clip = (T)s->clip;
    for (int64_t i = 0; i < n; i++) {
        T gi = g[i] * clip;
        gi = l2 != 0 ? gi + l2 * p[i] : gi;
        m[i] = (b1 * m[i]) + (b1c * gi);
        v[i] = (b2 * v[i]) + ((b2c * gi) * gi);
        T u = (m[i] * c1) / (SQRT(v[i] * c2) + eps);
        p[i] = p[i] - (lr * (u + wd * p[i]));
    }
}

static void F(sgd)(int64_t n, T *restrict p, const T *restrict g, T *restrict b,
                   const tl_sgd_step *s)
{
    const T mu = (T)s->mu, lr = (T)s->lr, wd = (T)s->wd, clip = (T)s->clip;
    const bool nesterov = s->nesterov, decoupled = s->decoupled, coupled = !decoupled && wd != 0;
    for (int64_t i = 0; i < n; i++) {
        T gi = g[i] * clip;
        gi = coupled ? gi + wd * p[i] : gi;
        if (b != NULL) {
            b[i] = (mu * b[i]) + gi;
            gi = nesterov ? gi + mu * b[i] : b[i];
        }
        gi = decoupled ? gi + wd * p[i] : gi;
        p[i] = p[i] - (lr * gi);
    }
}
