// Regions of moe_align_sort. `ids` are (token, k) pairs, `pads` the values that fill runs
// up, those of all blocks together.
//
//     id            name              category  payload fields
REGION(R_CLEAR, "clear", other)
REGION(R_COUNT, "count", compute, ids : 32)
REGION(R_GATHER, "wait-for-counts", sync)
REGION(R_SCAN, "scan", compute)
REGION(R_SCANNED, "wait-for-scan", sync)
REGION(R_LOOK_BACK, "look-back", wait, slices : 32)
REGION(R_ALIGN, "align", compute)
REGION(R_PLACE, "place", compute, ids : 32)
REGION(R_FILL, "fill", compute, pads : 32)
