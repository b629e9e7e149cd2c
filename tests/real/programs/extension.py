"""A C++ extension that torch.utils.cpp_extension builds: extension.py FOLDER."""

import sys

import torch
from torch.utils.cpp_extension import load_inline

import kprof

SOURCE = "torch::Tensor doubled(torch::Tensor x) { return 2 * x; }"
kprof.recorder().launch("doubled", num_blocks=1)
built = load_inline("doubled", SOURCE, functions=["doubled"], build_directory=sys.argv[1])
print("value", built.doubled(torch.arange(4.0)).tolist())
