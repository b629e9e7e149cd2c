"""Two ranks of DDP over gloo, one of them a child: ddp.py."""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kprof


def rank(number: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=2)
    recorder = kprof.recorder(rank=number, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        recorder.launch("step", num_blocks=1)
        model(torch.full((4, 8), float(step + number))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    if number == 0:
        print("value", float(weights.double().sum()))
    dist.destroy_process_group()


if len(sys.argv) > 1:
    rank(1, sys.argv[1])
else:
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "store")
        other = subprocess.Popen([sys.executable, __file__, file])
        rank(0, file)
        sys.exit(other.wait())
