// Regions of rms_norm_fp8.
//
//     id            name         category  payload fields
REGION(R_ADD, "add", compute, row : 32)
REGION(R_REDUCE, "reduce", sync)
REGION(R_NORMALISE, "normalise", compute, row : 32)
