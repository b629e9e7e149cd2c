"""Planted patterns that share nothing with `simulation`: other kernels, another machine, another way to plant."""
