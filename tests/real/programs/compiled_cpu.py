"""Programs of torch.compile on the CPU: python compiled_cpu.py cond | autograd | rng."""

import sys

import torch

torch.manual_seed(11)
x = torch.randn(8, 4)


def branched(values):
    """cond: one of two branches, chosen by a value."""
    return torch.cond(values.sum() > 0, torch.sin, torch.cos, (values,))


def dropped(values):
    return torch.nn.functional.dropout(values, 0.5).relu()


def squared(values):
    return (values @ values.T).square().mean()


FUNCTIONS = {"cond": branched, "rng": dropped}


def main(how):
    function = torch.compile(FUNCTIONS.get(how, squared))
    if how == "autograd":
        weights = x.clone().requires_grad_()
        function(weights).backward()
        return weights.grad
    return function(x)


for _ in range(2):
    out = main(sys.argv[1])
print("value", float(out.double().sum()))
