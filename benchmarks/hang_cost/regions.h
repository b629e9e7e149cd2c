REGION(R_TOKEN, "token", wait, peer:8, slot:24)
REGION(R_ANNOUNCED, "announced", compute, announced, peer:8, slot:24)
