//     id       name        category  payload fields
REGION(R_STEP,  "step",     compute)
REGION(R_SEND,  "send",     send,     peer:8, slot:24)
REGION(R_WAIT,  "wait",     wait,     peer:8, slot:24)
REGION(R_GRID,  "grid",     sync)
FLOW(R_SEND, R_WAIT)
