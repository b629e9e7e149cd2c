// Regions of skinny_gemm. `slot` is the number of the chunk of depth, of which the queue holds a few at a time;
// who waits for a place in it names the chunk that was there before.
//
//     id                name             category  payload fields
REGION(R_MULTIPLY, "multiply", compute, slot : 32)
REGION(R_REDUCE, "reduce", compute)
REGION(R_LOAD_WEIGHTS, "load-weights", send, slot : 32)
REGION(R_LOAD_TOKENS, "load-tokens", send, slot : 32)
REGION(R_WAIT_WEIGHTS, "wait-weights", wait, slot : 32)
REGION(R_WAIT_TOKENS, "wait-tokens", wait, slot : 32)
REGION(R_RELEASE, "release", send, slot : 32)
REGION(R_WAIT_SLOT, "wait-slot", wait, slot : 32)
FLOW_IN_BLOCK(R_LOAD_WEIGHTS, R_WAIT_WEIGHTS)
FLOW_IN_BLOCK(R_LOAD_TOKENS, R_WAIT_TOKENS)
FLOW_IN_BLOCK(R_MULTIPLY, R_WAIT_SLOT)
