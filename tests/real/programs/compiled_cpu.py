"""Programs of torch.compile on the CPU: python compiled_cpu.py cond | scan | autograd | rng."""

import sys

import torch

# For scan, which torch makes a loop of.
torch._dynamo.config.capture_scalar_outputs = True
torch.manual_seed(11)
x = torch.randn(8, 4)


def branched(values):
    """cond: one of two branches, chosen by a value."""
    return torch.cond(values.sum() > 0, torch.sin, torch.cos, (values,))


def running(values):
    """scan: a loop whose steps depend on each other."""

    def add(total, row):
        total = total * 0.5 + row
        return total, total.sin()

    return torch._higher_order_ops.scan(add, torch.zeros(4), values)[1]


def dropped(values):
    return torch.nn.functional.dropout(values, 0.5).relu()


def squared(values):
    return (values @ values.T).square().mean()


FUNCTIONS = {"cond": branched, "scan": running, "rng": dropped}


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
