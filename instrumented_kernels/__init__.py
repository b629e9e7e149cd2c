"""The kernels that kprof was built for. Each is a folder with one source for HIP, CUDA and the
CPU."""
