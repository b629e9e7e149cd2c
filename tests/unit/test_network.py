"""The network interface of a GPU, in copies of what Linux shows under /sys."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kprof.devices.gpu import pci_address_of
from kprof.devices.network import nearest_nic

# Two roots, a switch with a GPU and a NIC under each of the first root's ports.
DEVICES = {
    "0000:1b:00.0": "pci0000:15/0000:15:01.0/0000:19:00.0/0000:1b:00.0",
    "0000:3d:00.0": "pci0000:15/0000:15:02.0/0000:3b:00.0/0000:3d:00.0",
    "0000:9a:00.0": "pci0000:97/0000:97:01.0/0000:9a:00.0",
}
NICS = {
    "mlx5_0": "pci0000:15/0000:15:02.0/0000:3b:01.0/0000:3c:00.0",
    "mlx5_1": "pci0000:15/0000:15:01.0/0000:19:01.0/0000:1a:00.0",
    "mlx5_10": "pci0000:15/0000:15:01.0/0000:19:02.0/0000:1c:00.0",
}


def machine(root: Path, kind: str, nics: dict[str, str]) -> Path:
    for address, path in DEVICES.items():
        (root / "devices" / path).mkdir(parents=True, exist_ok=True)
        link = root / "bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(root / "devices" / path)
    for name, path in nics.items():
        (root / "devices" / path).mkdir(parents=True, exist_ok=True)
        (root / "class" / kind / name).mkdir(parents=True)
        (root / "class" / kind / name / "device").symlink_to(root / "devices" / path)
    return root


@pytest.mark.parametrize("kind", ["infiniband", "net"])
def test_the_nearest_interface_is_the_one_behind_the_same_switch(tmp_path: Path, kind: str) -> None:
    system = machine(tmp_path, kind, NICS)
    (system / "class" / kind / "lo").mkdir()  # of no device
    found = [nearest_nic(address, system) for address in DEVICES]
    assert found == ["mlx5_1", "mlx5_0", "mlx5_0"]


def test_infiniband_goes_before_ethernet(tmp_path: Path) -> None:
    machine(tmp_path, "infiniband", {"mlx5_0": NICS["mlx5_0"]})
    (tmp_path / "class/net/eth0").mkdir(parents=True)
    (tmp_path / "class/net/eth0/device").symlink_to(tmp_path / "devices" / NICS["mlx5_0"])
    assert nearest_nic("0000:1b:00.0", tmp_path) == "mlx5_0"


@pytest.mark.parametrize("address", ["", "0000:ff:00.0", "../../.."])
def test_what_is_not_known_is_empty(tmp_path: Path, address: str) -> None:
    assert nearest_nic(address, tmp_path) == ""
    assert nearest_nic(address, machine(tmp_path, "net", {})) == ""


def test_addresses_are_those_of_linux() -> None:
    given = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    assert pci_address_of(given) == "0000:1b:00.0"
    assert pci_address_of(SimpleNamespace(pci_bus_id=0x1B)) == ""
