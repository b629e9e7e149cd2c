"""A data loader with workers: forking.py fork | spawn | forkserver. The parent launches before and after."""

import sys

import torch
from torch.utils.data import DataLoader, Dataset

import kprof


class Squares(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, idx):
        return torch.tensor(float(idx * idx))


if __name__ == "__main__":
    recorder = kprof.recorder()
    recorder.launch("before", num_blocks=1)
    loader = DataLoader(Squares(), batch_size=5, num_workers=2, multiprocessing_context=sys.argv[1])
    for _ in range(2):
        print("batches", [float(batch.sum()) for batch in loader])
    recorder.launch("after", num_blocks=1)
