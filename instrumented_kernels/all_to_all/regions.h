// Regions of the all-to-all. `slot` is the position in the (source, destination) stream for dispatch and the flat token
// (token * K + k) at its origin for combine; in `pipelined`, where a token travels once, it is the token for both; for
// flags of a whole rank it is 0.
//
//     id                     name                    category  payload fields
REGION(R_COUNT,              "dispatch/count",        compute,  tokens:32)
REGION(R_SEND_COUNTS,        "dispatch/send-counts",  send,     peer:8, slot:24)
REGION(R_WAIT_COUNTS,        "dispatch/wait-counts",  wait,     peer:8, slot:24)
REGION(R_DISPATCH_SEND,      "dispatch/send",         send,     peer:8, slot:24)
REGION(R_DISPATCH_WAIT,      "dispatch/wait-token",   wait,     peer:8, slot:24)
REGION(R_DISPATCH_COPY,      "dispatch/copy",         recv,     peer:8, bytes:24)
REGION(R_EXPERT,             "expert",                compute,  local_expert:12, row:20)
REGION(R_COMBINE_SEND,       "combine/send",          send,     peer:8, slot:24)
REGION(R_COMBINE_WAIT,       "combine/wait-token",    wait,     peer:8, slot:24)
REGION(R_COMBINE_REDUCE,     "combine/reduce",        compute,  bytes:32)
REGION(R_DISPATCH_FLAG,      "dispatch/send-flag",    send,     peer:8, slot:24)
REGION(R_DISPATCH_WAIT_FLAG, "dispatch/wait-flag",    wait,     peer:8, slot:24)
REGION(R_COMBINE_FLAG,       "combine/send-flag",     send,     peer:8, slot:24)
REGION(R_COMBINE_WAIT_FLAG,  "combine/wait-flag",     wait,     peer:8, slot:24)
FLOW(R_SEND_COUNTS, R_WAIT_COUNTS)
FLOW(R_DISPATCH_SEND, R_DISPATCH_WAIT)
FLOW(R_COMBINE_SEND, R_COMBINE_WAIT)
FLOW(R_DISPATCH_FLAG, R_DISPATCH_WAIT_FLAG)
FLOW(R_COMBINE_FLAG, R_COMBINE_WAIT_FLAG)
