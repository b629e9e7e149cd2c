REGION(R_SEND, "exchange/send", send, peer:8, slot:24)
REGION(R_WAIT, "exchange/wait", wait, peer:8, slot:24)
FLOW(R_SEND, R_WAIT)
