REGION(R_TOKEN,    "token",          compute, token:32)
REGION(R_ARRIVED,  "token arrived",  compute, complete, token:32)
REGION(R_PASS,     "pass",           compute, pass:32)
REGION(R_SPAN,     "span",           compute, realtime_ticks:32)
