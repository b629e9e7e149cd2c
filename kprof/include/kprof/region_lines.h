// Includes the user's X-macro file once, with every line of a region, mark or value as KPROF_REGION_LINE(id, name,
// ...). The user's own macros called REGION, MARK, VALUE or FLOW are put back afterwards. Included several times on
// purpose.
#pragma push_macro("REGION")
#pragma push_macro("MARK")
#pragma push_macro("VALUE")
#pragma push_macro("FLOW")
#undef REGION
#undef MARK
#undef VALUE
#undef FLOW
#define REGION KPROF_REGION_LINE
#define MARK KPROF_REGION_LINE
#define VALUE KPROF_REGION_LINE
#define FLOW(send, wait)
#include KPROF_REGIONS
#undef REGION
#undef MARK
#undef VALUE
#undef FLOW
#pragma pop_macro("FLOW")
#pragma pop_macro("VALUE")
#pragma pop_macro("MARK")
#pragma pop_macro("REGION")
