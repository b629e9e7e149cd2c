"""Collectives in Triton, instrumented: an all-reduce in one and in two shots, and the dispatch of an all-to-all."""
