"""Liger's RMS norm and cross entropy, forward and backward: liger.py [spans].

With `spans`, kernels have spans of kprof's in them.
"""

import sys

import liger_kernel.ops.cross_entropy as entropy
import liger_kernel.ops.rms_norm as norm
import torch

import kprof.triton as kp

if "spans" in sys.argv:
    places = {"all": ..., "load": "tl.load"}
    for module, name in (
        (norm, "_rms_norm_forward_kernel"),
        (norm, "_block_rms_norm_forward_kernel"),
        (entropy, "liger_cross_entropy_kernel"),
    ):
        setattr(module, name, kp.instrument(getattr(module, name), at=places))

torch.manual_seed(5)
x = torch.randn(512, 1024, device="cuda", requires_grad=True)
weight = torch.randn(1024, device="cuda", requires_grad=True)
target = torch.randint(0, 1024, (512,), device="cuda")
for _ in range(3):
    normed = norm.LigerRMSNormFunction.apply(x, weight, 1e-6)
    loss = entropy.LigerCrossEntropyFunction.apply(normed.clone(), target, None)
    loss = loss[0] if isinstance(loss, tuple) else loss
    loss.backward()
# Spans make another kernel: sums may differ in the last bit.
print("value", f"{float(loss):.5f}", f"{float(x.grad.double().abs().sum()):.5g}")
