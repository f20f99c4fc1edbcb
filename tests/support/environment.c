/* environment.c: see environment.h. Flushing is known for x86 alone. */
#include "tests/support/environment.h"

#include <fenv.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

static const struct {
    const char *name;
    int rounding;
    bool flush; /* subnormals are zero, read and written */
} environment[] = {
    {"round to nearest", FE_TONEAREST, false}, {"round up", FE_UPWARD, false},
    {"round down", FE_DOWNWARD, false},        {"round to zero", FE_TOWARDZERO, false},
#if defined(__SSE2__)
    {"FTZ and DAZ", FE_TONEAREST, true},       {"FTZ and DAZ, round up", FE_UPWARD, true},
#endif
};
int environments(void) { return (int)(sizeof environment / sizeof *environment); }
const char *environment_name(int e) { return environment[e].name; }

void environment_enter(int e)
{
    fesetround(environment[e].rounding);
#if defined(__SSE2__)
    _mm_setcsr((_mm_getcsr() & ~0x8040u) | (environment[e].flush ? 0x8040u : 0));
#endif
}

bool environment_leave(int e)
{
    bool kept = fegetround() == environment[e].rounding;
#if defined(__SSE2__)
    kept &= (_mm_getcsr() & 0x8040u) == (environment[e].flush ? 0x8040u : 0);
#endif
    environment_enter(0);
    return kept;
}
