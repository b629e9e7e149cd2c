"""What data sheets say of GPUs, for recordings made without `kprof doctor --measure`.

GB are 10^9 bytes. A byte that is copied is read and written, so a copy within a device reaches at
most half of what its memory does; measured copies reach 85 to 95 % of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kprof.capture.manifest import Ceilings


@dataclass(frozen=True)
class _Sheet:
    """GB/s of the memory, and of all links to other GPUs in one direction; 0 where it has none."""

    memory_gb_s: float
    links_gb_s: float = 0.0


# By how the name of the device begins; the longest that fits counts.
_SHEETS: Final = {
    "NVIDIA A100-SXM4-40GB": _Sheet(1555, 300),
    "NVIDIA A100-SXM4-80GB": _Sheet(2039, 300),
    "NVIDIA A100 80GB PCIe": _Sheet(1935),
    "NVIDIA A100-PCIE-40GB": _Sheet(1555),
    "NVIDIA H100 80GB HBM3": _Sheet(3350, 450),
    "NVIDIA H100 PCIe": _Sheet(2000),
    "NVIDIA H100 NVL": _Sheet(3900, 300),
    "NVIDIA H200": _Sheet(4800, 450),
    "NVIDIA B200": _Sheet(8000, 900),
    "NVIDIA L4": _Sheet(300),
    "NVIDIA L40S": _Sheet(864),
    "NVIDIA A10": _Sheet(600),
    "NVIDIA GeForce RTX 3090": _Sheet(936),
    "NVIDIA GeForce RTX 4090": _Sheet(1008),
    # To one peer goes one link of seven.
    "AMD Instinct MI300X": _Sheet(5300, 64),
    "AMD Instinct MI325X": _Sheet(6000, 64),
    "AMD Instinct MI355X": _Sheet(8000, 76.8),
}


def ceilings_of(device: str) -> Ceilings | None:
    """The ceilings of a device by its name; None where nothing is known of it.

    A part of a GPU (MIG) has a part of its bandwidth, which its name does not tell.
    """
    known = [name for name in _SHEETS if f"{device} ".startswith(f"{name} ")]
    if not known or " MIG " in device:
        return None
    sheet = _SHEETS[max(known, key=len)]
    return Ceilings(copy_gb_s=sheet.memory_gb_s / 2, peer_gb_s=sheet.links_gb_s)
