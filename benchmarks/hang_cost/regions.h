REGION(R_TOKEN, "token", wait, peer:8, slot:24)
