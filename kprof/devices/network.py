"""Which network interface a GPU uses: the nearest in the PCI tree, as NCCL and RCCL choose."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SYSTEM: Final = Path("/sys")


def nearest_nic(pci_address: str, system: Path = _SYSTEM) -> str:
    """The InfiniBand or RoCE device, else the Ethernet one, that shares most of the PCI path with a
    device (0000:1b:00.0). Of equals the first by number; "" where nothing is known."""
    try:
        own = _path_of(system / "bus" / "pci" / "devices" / pci_address)
        for kind in ("infiniband", "net"):
            nics = {
                nic.name: _path_of(nic / "device")
                for nic in (system / "class" / kind).glob("*")
                if (nic / "device").exists()
            }
            if nics:
                return min(nics, key=lambda name: (-_shared(own, nics[name]), len(name), name))
    except OSError:
        pass  # a machine whose tree is another one, or that hides it
    return ""


def _path_of(link: Path) -> tuple[str, ...]:
    return link.resolve(strict=True).parts


def _shared(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """How many folders two paths share, from the root on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
