"""What kernels run on: targets and compilers, builds, device memory that ranks share."""
