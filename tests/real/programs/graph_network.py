"""torch-geometric's GCN, compiled, inference."""

import torch
from torch_geometric.nn import GraphConv

torch.manual_seed(8)
layers = torch.nn.ModuleList([GraphConv(32, 32, aggr="max") for _ in range(2)]).cuda()
edges = torch.randint(0, 500, (2, 4000), device="cuda")


def network(x, edges):
    for layer in layers:
        x = torch.relu(layer(x, edges))
    return x


compiled = torch.compile(network)
x = torch.randn(500, 32, device="cuda")
with torch.no_grad():
    for _ in range(3):
        out = compiled(x, edges)
print("value", float(out.double().sum()))
