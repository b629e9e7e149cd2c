"""Collectives in Triton, instrumented: an all-reduce in one and two shots, and a dispatch."""
