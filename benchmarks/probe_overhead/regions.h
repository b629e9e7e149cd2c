REGION(R_TOKEN, "token", compute, token:32)
