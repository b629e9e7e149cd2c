"""The kernels that kprof was built for: each a folder with one source for HIP, CUDA and the CPU."""
