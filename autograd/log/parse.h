/* parse.h: fields of a log's lines. Private to autograd/. */
#ifndef TL_LOG_PARSE_H
#define TL_LOG_PARSE_H

#include "autograd/log/read.h"

/* A whole number at *s, which moves behind it; false if there is none or it is too large. */
bool tl_parse_whole(const char **s, int64_t *x);
/* %XX back into bytes, in place. */
void tl_parse_decode(char *s);
/* d->shape into parts, rows, last and tail; false if it is no shape. */
bool tl_parse_shape(tl_log_def *d);
/* The keys in "f1,-,b3.1", at most room of them, into in; their number, -1 if they are no keys. */
int tl_parse_inputs(const char *s, uint64_t *in, int room);

#endif
