"""The memory that kernels record into: what is in use, which arena is next, what stays."""
