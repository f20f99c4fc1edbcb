/* words.h: what the results of a log are called, and two steps matched by name. */
#ifndef TL_LOG_WORDS_H
#define TL_LOG_WORDS_H

#include "autograd/log/read.h"

enum { TL_WORDS = 512, TL_LOG_SHAPE = 256 };

/* A parameter, buffer or data: computed by no op. */
bool tl_log_is_leaf(const tl_log_def *d);
/* "[12, 64, 128]", or "scalar"; parts: and in how many it came. Returns buf. */
const char *tl_log_shape_text(char buf[TL_LOG_SHAPE], const tl_log_def *d, bool parts);
/* "matmul in the backward of rms_norm (f5): the gradient of w"; s: the step that d is of. Returns
 * buf. */
const char *tl_log_words(char buf[TL_WORDS], const tl_logged_step *s, const tl_log_def *d);

/* Parameters of two steps, matched by name. */
typedef struct {
    int same;                          /* of the same shape and dtype, */
    int other_bytes;                   /* of these: with other values, */
    int reshaped;                      /* of another shape or dtype, */
    int only[2];                       /* in a alone, in b alone */
    const tl_log_def *reshaped_def[2]; /* the first of each kind */
    const tl_log_def *only_def[2];
} tl_log_parameters;
/* TL_ENOMEM. */
tl_status tl_log_match_parameters(tl_log_parameters *p, const tl_logged_step *a,
                                  const tl_logged_step *b);

/* Parameters whose updates are in both steps, by name, and how many of them came out otherwise.
 * TL_ENOMEM: none. */
tl_status tl_log_match_updates(const tl_logged_step *a, const tl_logged_step *b, int *n,
                               int *differ);

#endif
