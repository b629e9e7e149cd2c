// Regions of skinny_gemm. `slot` is the number of the chunk of depth, of which the queue holds a few at a time;
// who waits for a place in it names the chunk that was there before.
//
// What stands before the "/" is the role of a warp.
//
//     id                       name                           category  payload fields
REGION(R_MULTIPLY, "multiply", compute, slot : 32)
REGION(R_REDUCE, "reduce", compute)
REGION(R_LOAD_WEIGHTS, "weight-producer/load", send, slot : 32)
REGION(R_WAIT_WEIGHT_SLOT, "weight-producer/wait-slot", wait, slot : 32)
REGION(R_LOAD_TOKENS, "token-producer/load", send, slot : 32)
REGION(R_WAIT_TOKEN_SLOT, "token-producer/wait-slot", wait, slot : 32)
REGION(R_WAIT_TOKENS, "consumer/wait-tokens", wait, slot : 32)
REGION(R_WAIT_WEIGHTS, "consumer/wait-weights", wait, slot : 32)
REGION(R_CONSUME, "consumer/multiply", compute, slot : 32)
FLOW_IN_BLOCK(R_LOAD_WEIGHTS, R_WAIT_WEIGHTS)
FLOW_IN_BLOCK(R_LOAD_TOKENS, R_WAIT_TOKENS)
FLOW_IN_BLOCK(R_CONSUME, R_WAIT_WEIGHT_SLOT)
FLOW_IN_BLOCK(R_CONSUME, R_WAIT_TOKEN_SLOT)
