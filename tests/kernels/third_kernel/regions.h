REGION(R_PUT,  "put",  send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
FLOW(R_PUT, R_WAIT)
