"""The setup of every workload: the group of ranks, this rank's device, errors in one line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import typer

from kprof.devices.gpu import make_current
from kprof.devices.groups import Group, SoloGroup, TorchGroup
from kprof.devices.on_use import torch
from kprof.devices.targets import Target, best_target, count_devices, require_target
from kprof.errors import KprofError, TargetError

# Fills outputs before a call. It is never a right value, so unwritten elements show.
POISON = float("nan")


@contextlib.contextmanager
def joined_group() -> Iterator[Group]:
    """The process group that torchrun (or kprof record --nproc) defines, or this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield SoloGroup()
        return
    # Kernels communicate through symmetric memory; the process group only exchanges handles, on the
    # CPU.
    torch.distributed.init_process_group("gloo")
    try:
        yield TorchGroup()
    finally:
        torch.distributed.destroy_process_group()


def choose_device(target: str) -> str:
    """The torch device of this rank for `--target`. "auto" uses GPUs if there is one for every rank
    of this host.

    Makes the device current. Raises TargetError if the target cannot be used here.
    """
    num_local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    if target == "auto":
        best = best_target()
        chosen = best if count_devices(best) >= num_local_ranks else Target.CPU
    elif target in Target._value2member_map_:
        chosen = Target(target)
    else:
        raise TargetError(f"--target {target!r} is not known; choose auto, cpu, cuda or hip")
    if chosen is Target.CPU:
        return "cpu"
    require_target(chosen)
    if count_devices(chosen) < num_local_ranks:
        raise TargetError(
            f"{num_local_ranks} ranks need {num_local_ranks} GPUs on this host, and it has "
            f"{count_devices(chosen)}; start fewer ranks or use --target cpu"
        )
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    make_current(device)
    return device


@contextlib.contextmanager
def errors_in_one_line(command: str, *expected: type[Exception]) -> Iterator[None]:
    """End `command` with exit code 1 and one line if its arguments are wrong or impossible.

    Treats errors of the `expected` types, which its calls raise, in the same way.
    """
    caught: tuple[type[Exception], ...] = (ValueError, KprofError, *expected)
    try:
        yield
    except caught as error:
        typer.echo(f"{command}: {error}", err=True)
        raise typer.Exit(1) from None
