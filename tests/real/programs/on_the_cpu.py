"""torch.compile for the CPU (C++): nothing of it is Triton."""

import torch

torch.manual_seed(10)


def network(x):
    return (torch.softmax(x.sin() + 1, -1) * x.relu()).sum(0)


compiled = torch.compile(network)
x = torch.randn(6, 8)
for _ in range(3):
    out = compiled(x)
torch.testing.assert_close(out, network(x))
print("value", float(out.double().sum()))
