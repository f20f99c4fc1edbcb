/* Lesson 18: stop and resume, and where two runs part.
 *
 * A run that is stopped and resumed should end as one that is not. So all that the next step
 * depends on must be kept: the weights; what the optimizer remembers of earlier gradients, and how
 * many steps it has made; and where the random numbers are, which is easy if a draw depends on a
 * seed and a step instead of on a generator's past.
 *
 * If something was forgotten, the loss does not tell: it goes on falling. So we log both runs, each
 * result of each step with a hash of its bytes; where the logs first differ is what was forgotten.
 * (1 / (1 - beta1^step) is Adam's correction for how few gradients it knows of at first.)
 */
#include <string.h>
#include <tally_data.h>

#include "autograd/log/read/read.h"
#include "examples/course/course.h"

enum { ROWS = 16, WIDTH = 4, STOP = 10, STEPS = 20 };
typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
} run;

static run begin(void)
{
    tl_model *m = tl_model_new(.seed = 1);
    return (run){m, tl_tape_new(m), tl_adamw_new(m, .lr = 1e-2)};
}

static void end(run *r) { tl_free(r->opt, r->t, r->m); }

/* A batch is drawn anew for each step, from the step's number. */
static tl_tensor loss_of(run *r, int step)
{
    float x[ROWS][WIDTH], y[ROWS][1];
    tl_rng_key key = tl_rng_stream(1, "batches");
    for (uint64_t i = 0; i < ROWS; i++) {
        for (uint64_t k = 0; k < WIDTH; k++)
            x[i][k] = (float)tl_rng_normal64(key, (uint64_t)step, i * WIDTH + k);
        y[i][0] = x[i][0] * x[i][1];
    }
    tl_tensor in = tl_data(r->t, x, TL_F32, TL_DIMS(ROWS, WIDTH));
    tl_tensor want = tl_data(r->t, y, TL_F32, TL_DIMS(ROWS, 1));
    tl_tensor h = tl_tanh(r->t, tl_linear(r->t, r->m, "l1", in, 8));
    return tl_mse(r->t, tl_linear(r->t, r->m, "l2", h, 1), want);
}

static void train(run *r, int from, int to, int first_batch)
{
    for (int step = from; step < to; step++) {
        tl_backward(r->t, loss_of(r, first_batch + step));
        tl_step(r->opt, r->t);
        tl_tape_reset(r->t);
    }
}

/* Whether two logs differ; prints the first result that does (more: build/tally-diff A B). */
static bool part(const char *a, const char *b)
{
    tl_log_file *f = NULL, *g = NULL;
    bool read = tl_log_read(&f, a, NULL) == TL_OK && tl_log_read(&g, b, NULL) == TL_OK, differ = 0;
    for (int i = 0; read && !differ && i < tl_log_steps(f) && i < tl_log_steps(g); i++) {
        tl_log_comparison c;
        read = tl_log_compare(&c, tl_log_step_at(f, i), tl_log_step_at(g, i)) == TL_OK;
        differ = read && c.first >= 0;
        const tl_log_def *d = differ ? c.a->result[c.first].def : NULL;
        if (differ)
            printf("step %d: %s [%s]", (int)c.a->number, *d->name ? d->name : d->op, d->shape);
        tl_log_comparison_free(&c);
    }
    tl_log_file_close(f);
    tl_log_file_close(g);
    return differ;
}

int main(int argc, char **argv)
{
    static const char *const kept[] = {"weights, optimizer and step", "weights and step",
                                       "weights and optimizer"};
    static const char *const last[] = {"checkpoint", "weights", "log", "resumed.log"};
    char want[65], got[65], path[4][4096];
    bool held = true;
    for (int i = 0; i < 4; i++)
        snprintf(path[i], sizeof path[i], "%s.%s", argv[argc - 1], last[i]);

    /* 1. The run that is not stopped. Half way it writes what the others go on from. */
    run r = begin();
    train(&r, 0, STOP, 0);
    held &= tl_checkpoint_save(r.m, r.opt, path[0], NULL, 0) == TL_OK;
    held &= tl_save(r.m, path[1]) == TL_OK;
    if (!held)
        puts("The checkpoint could not be written.");
    tl_log_open(r.t, path[2], .first = STOP + 1);
    train(&r, STOP, STEPS, 0);
    held &= tl_model_sha256(r.m, want) == TL_OK && tl_log_close(r.t) == TL_OK;
    end(&r);
    printf("kept                          weights after %d steps   first difference\n", STEPS);
    printf("%-28s  %.16s\n", "(not stopped)", want);

    /* 2. Resumed with all of it; without the optimizer's memory; with the first batches again. */
    for (int k = 0; k < 3; k++) {
        r = begin();
        loss_of(&r, 0); /* makes the parameters, which the file fills */
        tl_tape_reset(r.t);
        held &= (k == 1 ? tl_load(r.m, path[1])
                        : tl_checkpoint_load(r.m, r.opt, path[0], NULL, NULL, 0)) == TL_OK;
        tl_log_open(r.t, path[3], .first = STOP + 1);
        train(&r, STOP, STEPS, k == 2 ? -STOP : 0);
        held &= tl_model_sha256(r.m, got) == TL_OK && tl_log_close(r.t) == TL_OK;
        end(&r);
        printf("%-28s  %.16s         ", kept[k], got);
        bool differ = part(path[2], path[3]);
        puts(differ ? "" : "none");
        held &= differ == (k > 0) && (strcmp(want, got) != 0) == differ;
    }
    for (int i = 0; i < 4; i++)
        remove(path[i]);
    return course_end(held, "keep all that the next step depends on: stopping leaves no trace.");
}
