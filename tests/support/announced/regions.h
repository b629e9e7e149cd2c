REGION(R_TILE, "tile", compute, announced, tile:16)
REGION(R_LOAD, "load", recv, slot:8)
REGION(R_GEMM, "gemm", compute, complete, announced, step:8)
REGION(R_SCALE, "scale", compute, announced)
