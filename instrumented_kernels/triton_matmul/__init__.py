"""A persistent matmul in Gluon: one partition loads, one multiplies; instrumented."""
