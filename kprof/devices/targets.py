"""All targets, and which of them this machine can build for and run on, with which compiler."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Final

from kprof.devices import gpu
from kprof.devices.network import nearest_nic
from kprof.devices.on_use import torch
from kprof.devices.record import Compiler as Compiler
from kprof.devices.record import Devices as Devices
from kprof.devices.record import Target as Target
from kprof.devices.record import TargetRecord as TargetRecord
from kprof.errors import TargetError

# Each target has a module with its name. The CPU comes last in `best_target`: it can always run.
_RECORDS: Final[dict[Target, TargetRecord]] = {
    target: import_module(f"kprof.devices.{target.value}").RECORD
    for target in sorted(Target, key=lambda target: target is Target.CPU)
}


def record_of(target: Target) -> TargetRecord:
    """Everything that differs between targets."""
    return _RECORDS[target]


def target_of_device(device: str) -> Target:
    """The target of "cpu" or a torch device such as "cuda:3" (ROCm's torch uses that name, too)."""
    if device == "cpu":
        return Target.CPU
    return Target.HIP if torch.version.hip else Target.CUDA


@dataclass(frozen=True)
class TargetStatus:
    """What `kprof doctor` says about a target.

    `unusable` has a sentence per device out of reach.
    """

    target: Target
    can_run: bool
    compiler: str
    detail: str
    remedy: str
    unusable: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether kernels can be built and run here."""
        return bool(self.compiler) and self.can_run


def probe() -> list[TargetStatus]:
    """The state of every target here. Only asks drivers and compilers for their versions."""
    return [_status(target) for target in Target]


def best_target() -> Target:
    """The target that `kprof demo` uses: a GPU if kernels can be built and run, else the CPU."""
    for target in _RECORDS:
        if count_devices(target) > 0 and find_compiler(target) is not None:
            return target
    return Target.CPU


def require_target(target: Target) -> Compiler:
    """The compiler for a target that must run here; raises TargetError."""
    status = _status(target)
    compiler = find_compiler(target)
    if compiler is None or not status.can_run:
        raise TargetError(
            f"the target {target.value} cannot be used here: {status.detail}; {status.remedy}"
        )
    return compiler


@cache
def find_compiler(target: Target) -> Compiler | None:
    """The compiler for a target, or None. CXX, CUDA_HOME, ROCM_PATH and HIP_PATH are honoured."""
    return record_of(target).find_compiler()


@dataclass(frozen=True)
class DeviceDescription:
    """The device of a recording; `num_processors` counts a GPU's SMs or CUs, 0 for the CPU; `nic`
    is the network interface nearest to a GPU, "" where unknown."""

    target: Target
    name: str
    arch: str
    num_processors: int = 0
    nic: str = ""


def describe_device(device: str) -> DeviceDescription:
    """The device "cpu" or a torch device such as "cuda:3".

    Raises TargetError if it does not exist.
    """
    if device == "cpu":
        machine = platform.machine()
        return DeviceDescription(Target.CPU, f"CPU {machine}", machine)
    try:
        target = target_of_device(device)
        properties = gpu.properties_of(device)
    except (ImportError, AssertionError, RuntimeError, ValueError) as error:
        # torch raises many kinds of exceptions for a device that does not exist.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TargetError(
            f'there is no device {device!r} here ({reason}); pass device="cpu", or run kprof doctor'
        ) from error
    arch = record_of(target).arch_of(properties)
    nic = nearest_nic(gpu.pci_address_of(properties))
    return DeviceDescription(target, properties.name, arch, properties.multi_processor_count, nic)


def arch_of_device(device: str) -> str:
    """The architecture to compile for, so that kernels run on a device; "" for the CPU."""
    target = target_of_device(device)
    if target is Target.CPU:
        return ""
    # AMD adds features to the architecture: gfx942:sramecc+:xnack-.
    return record_of(target).arch_of(gpu.properties_of(device)).split(":")[0]


def count_cores() -> int:
    """What a container or a launcher leaves of the host's cores, where the system can say so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def count_devices(target: Target) -> int:
    """How many devices of a target this process may use (1 for the CPU). Needs no torch."""
    return len(record_of(target).find_devices().archs)


def archs_of_devices(target: Target) -> tuple[str, ...]:
    """The architectures of this machine's devices, each once.

    Without devices the target's default.
    """
    record = record_of(target)
    return tuple(dict.fromkeys(filter(None, record.find_devices().archs))) or (record.default_arch,)


def _status(target: Target) -> TargetStatus:
    record, compiler = record_of(target), find_compiler(target)
    devices = record.find_devices()
    num_devices = len(devices.archs)
    if compiler is None:
        detail, remedy = "no compiler found", record.build_remedy
    elif num_devices:
        detail, remedy = f"{num_devices} device{'' if num_devices == 1 else 's'}", ""
    else:
        detail = "builds, but this machine has no such device"
        remedy = "run on a machine with one, or use --target cpu"
    version = f"{compiler.path} ({compiler.version})" if compiler else ""
    return TargetStatus(target, num_devices > 0, version, detail, remedy, devices.unusable)
