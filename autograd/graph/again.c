#include "autograd/graph/plan.h"
tl_status tl_plan_again(tl_graph *g) { (void)g; return TL_OK; }
