/* attrs.c: attributes of an op as text, by its schema. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/internal.h"
#include "tensor/threads.h"

const char *tl_attrs_text(const tl_op *op, const void *attrs, char buf[TL_ATTRS_TEXT])
{
    size_t at = 0, room = TL_ATTRS_TEXT;
    char s[TL_SHAPE_TEXT];
    buf[0] = '\0';
    tl_textenv saved = tl_textenv_enter(); /* logs compare the digits */
    for (const tl_attr *a = op->attr; a != NULL && a->name != NULL && at < room; a++) {
        const char *p = (const char *)attrs + a->offset, *mark = at == 0 ? " {" : ", ";
        switch (a->kind) {
        case TL_ATTR_I64:
            at += (size_t)snprintf(buf + at, room - at, "%s%s=%" PRId64, mark, a->name,
                                   *(const int64_t *)p);
            break;
        case TL_ATTR_INT:
            at += (size_t)snprintf(buf + at, room - at, "%s%s=%d", mark, a->name, *(const int *)p);
            break;
        case TL_ATTR_F64:
            at += (size_t)snprintf(buf + at, room - at, "%s%s=%.9g", mark, a->name,
                                   *(const double *)p);
            break;
        case TL_ATTR_BOOL:
            at += (size_t)snprintf(buf + at, room - at, "%s%s=%s", mark, a->name,
                                   *(const bool *)p ? "yes" : "no");
            break;
        case TL_ATTR_SHAPE:
            at += (size_t)snprintf(buf + at, room - at, "%s%s=%s", mark, a->name,
                                   tl_shape_text(s, (const tl_shape *)p));
            break;
        case TL_ATTR_DTYPE:
            at += (size_t)snprintf(buf + at, room - at, "%s%s=%s", mark, a->name,
                                   tl_dtype_name(*(const tl_dtype *)p));
            break;
        }
    }
    tl_textenv_leave(saved);
    if (at > 0 && at < room - 1)
        memcpy(buf + at, "}", 2);
    return buf;
}
