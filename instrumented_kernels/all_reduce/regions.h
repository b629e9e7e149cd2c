// Regions of the all-reduce. `slot` is the block on both sides: block b of a rank talks to block b of the others.
// `bytes` are those of the tensor, whatever they travel as.
//
//     id                  name                category  payload fields
REGION(R_PUT,            "put",              send,     peer:6, slot:8, bytes:18)
REGION(R_PUBLISH,        "publish",          send,     bytes:32)
REGION(R_WAIT,           "wait",             wait,     peer:8, slot:24)
REGION(R_REDUCE,         "reduce",           compute,  bytes:32)
REGION(R_LOCK_ACQUIRE,   "lock/acquire",     sync)
REGION(R_LOCK_HOLD,      "lock/hold",        compute,  bytes:32)
REGION(R_TREE_PUT,       "tree/put",         send,     peer:6, slot:8, bytes:18)
REGION(R_TREE_WAIT,      "tree/wait",        wait,     peer:8, slot:24)
REGION(R_BROADCAST,      "broadcast",        send,     peer:6, slot:8, bytes:18)
REGION(R_BROADCAST_WAIT, "broadcast/wait",   wait,     peer:8, slot:24)
REGION(R_COPY_OUT,       "copy-out",         compute,  bytes:32)
FLOW(R_PUT, R_WAIT)
FLOW(R_TREE_PUT, R_TREE_WAIT)
FLOW(R_BROADCAST, R_BROADCAST_WAIT)
