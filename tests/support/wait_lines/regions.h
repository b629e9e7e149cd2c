REGION(R_WAIT, "wait", wait, slot:16)
