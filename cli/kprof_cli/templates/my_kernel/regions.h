//     id       name         category  payload fields
REGION(R_ADD,   "add",       compute,  row:24)
REGION(R_SEND,  "send",      send,     peer:8, slot:24)
REGION(R_WAIT,  "wait",      wait,     peer:8, slot:24)
VALUE (R_TILES, "tiles",     other)
MARK  (R_KNOWN, "sum-known", other)
FLOW  (R_SEND, R_WAIT)
