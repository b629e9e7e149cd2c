"""A persistent matmul in Gluon with a partition that loads and one that multiplies, instrumented."""
