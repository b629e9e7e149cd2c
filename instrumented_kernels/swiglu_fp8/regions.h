// Regions of swiglu_fp8. `load` lasts until the data has arrived: the clock is read once it has been used.
//
//     id           name        category  payload fields
REGION(R_LOAD, "load", recv, row : 32)
REGION(R_ACTIVATE, "activate", compute, row : 32)
