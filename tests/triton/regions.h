REGION(R_WAIT, "wait", wait,    peer:8, slot:24)
REGION(R_COPY, "copy", compute, bytes:32)
MARK  (R_DONE, "done", sync)
VALUE (R_LEFT, "left", other)
