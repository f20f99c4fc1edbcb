/* Lesson 15: stop and resume.
 *
 * A run that was stopped and resumed should end with the weights of a run that was not. For that,
 * everything that the next step depends on must be kept: the weights; what the optimizer remembers
 * of earlier gradients; how many steps were made; and where the random numbers are. The last is
 * easy if a draw depends on a seed and a step instead of on a generator's past.
 *
 * We stop after 10 of 20 steps and resume three times: with all of it, then twice with one thing
 * left out.
 */
#include <string.h>
#include <tally_data.h>

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

int main(int argc, char **argv)
{
    static const char *const kept[] = {"weights, optimizer and step", "weights and step",
                                       "weights and optimizer"};
    char want[65], got[65], path[4096], weights[4096];
    bool held = true;
    snprintf(path, sizeof path, "%s.checkpoint", argv[argc - 1]);
    snprintf(weights, sizeof weights, "%s.weights", argv[argc - 1]);

    /* 1. The run that is not stopped, and the one that is. */
    run r = begin();
    train(&r, 0, STOP, 0);
    if (tl_checkpoint_save(r.m, r.opt, path, NULL, 0) != TL_OK || tl_save(r.m, weights) != TL_OK) {
        end(&r);
        remove(path);
        return course_end(false, "the checkpoint could not be written.");
    }
    train(&r, STOP, STEPS, 0);
    held &= tl_model_sha256(r.m, want) == TL_OK && !tl_failed(r.t);
    end(&r);
    printf("kept                          weights after %d steps\n", STEPS);
    printf("%-28s  %.16s\n", "(not stopped)", want);

    /* 2. Resumed with all of it; without the optimizer's memory; and with the first batches again.
     */
    for (int k = 0; k < 3; k++) {
        r = begin();
        loss_of(&r, 0); /* makes the parameters, which the file fills */
        tl_tape_reset(r.t);
        if (k == 1)
            held &= tl_load(r.m, weights) == TL_OK;
        else
            held &= tl_checkpoint_load(r.m, r.opt, path, NULL, NULL, 0) == TL_OK;
        train(&r, STOP, STEPS, k == 2 ? -STOP : 0);
        held &= tl_model_sha256(r.m, got) == TL_OK && !tl_failed(r.t);
        bool same = strcmp(want, got) == 0;
        printf("%-28s  %.16s  %s\n", kept[k], got, same ? "the same" : "another run");
        held &= same == (k == 0);
        end(&r);
    }
    remove(path);
    remove(weights);
    return course_end(held,
                      "keep all that the next step depends on, and stopping leaves no trace.");
}
