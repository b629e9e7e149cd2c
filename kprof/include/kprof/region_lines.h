// Includes the user's X-macro file, with every line of a region, mark or value expanded to KPROF_REGION_LINE(id, name,
// ...). The user's own macros called REGION, MARK, VALUE, FLOW or FLOW_IN_BLOCK are restored afterwards. This file is
// included several times on purpose.
#pragma push_macro("REGION")
#pragma push_macro("MARK")
#pragma push_macro("VALUE")
#pragma push_macro("FLOW")
#pragma push_macro("FLOW_IN_BLOCK")
#undef REGION
#undef MARK
#undef VALUE
#undef FLOW
#undef FLOW_IN_BLOCK
#define REGION KPROF_REGION_LINE
#define MARK KPROF_REGION_LINE
#define VALUE KPROF_REGION_LINE
#define FLOW(send, wait)
#define FLOW_IN_BLOCK(send, wait)
#include KPROF_REGIONS
#undef REGION
#undef MARK
#undef VALUE
#undef FLOW
#undef FLOW_IN_BLOCK
#pragma pop_macro("FLOW_IN_BLOCK")
#pragma pop_macro("FLOW")
#pragma pop_macro("VALUE")
#pragma pop_macro("MARK")
#pragma pop_macro("REGION")
