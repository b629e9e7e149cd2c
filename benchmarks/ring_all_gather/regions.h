REGION(R_FILL, "fill", compute, step:8, bytes:24)
REGION(R_PASS, "pass", send,    peer:8, slot:24)
REGION(R_WAIT, "wait", wait,    peer:8, slot:24)
FLOW(R_PASS, R_WAIT)
