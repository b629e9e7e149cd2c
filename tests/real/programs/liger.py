"""Liger's RMS norm and cross entropy, forward and backward."""

import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction

torch.manual_seed(5)
x = torch.randn(512, 1024, device="cuda", requires_grad=True)
weight = torch.randn(1024, device="cuda", requires_grad=True)
target = torch.randint(0, 1024, (512,), device="cuda")
for _ in range(3):
    normed = LigerRMSNormFunction.apply(x, weight, 1e-6)
    loss = LigerCrossEntropyFunction.apply(normed.clone(), target, None)
    loss = loss[0] if isinstance(loss, tuple) else loss
    loss.backward()
print("value", float(loss), float(x.grad.double().sum()))
