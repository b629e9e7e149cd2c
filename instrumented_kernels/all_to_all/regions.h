// Regions of the all-to-all. `slot` is the position in the (source, destination) stream for dispatch, and the flat token
// (token * K + k) at its origin for combine.
//
//     id                 name                    category  payload fields
REGION(R_COUNT,          "dispatch/count",        compute,  tokens:32)
REGION(R_SEND_COUNTS,    "dispatch/send-counts",  send,     peer:8, slot:24)
REGION(R_WAIT_COUNTS,    "dispatch/wait-counts",  wait,     peer:8, slot:24)
REGION(R_DISPATCH_SEND,  "dispatch/send",         send,     peer:8, slot:24)
REGION(R_DISPATCH_WAIT,  "dispatch/wait-token",   wait,     peer:8, slot:24)
REGION(R_DISPATCH_COPY,  "dispatch/copy",         recv,     peer:8, bytes:24)
REGION(R_EXPERT,         "expert",                compute,  local_expert:12, row:20)
REGION(R_COMBINE_SEND,   "combine/send",          send,     peer:8, slot:24)
REGION(R_COMBINE_WAIT,   "combine/wait-token",    wait,     peer:8, slot:24)
REGION(R_COMBINE_REDUCE, "combine/reduce",        compute,  bytes:32)
FLOW(R_SEND_COUNTS, R_WAIT_COUNTS)
FLOW(R_DISPATCH_SEND, R_DISPATCH_WAIT)
FLOW(R_COMBINE_SEND, R_COMBINE_WAIT)
