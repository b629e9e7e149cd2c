"""Targets: where compilers are looked for, which devices count, what is built for them, and the network interface of a GPU."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kprof.devices import cuda, hip, targets
from kprof.devices.build import BuildOptions
from kprof.devices.gpu import pci_address_of
from kprof.devices.network import nearest_nic
from kprof.devices.record import Compiler, Devices
from kprof.devices.targets import Target, archs_of_devices, count_devices, record_of
from kprof.doctor import checks
from kprof.errors import TargetError

HIPCC = Compiler("/opt/rocm/bin/hipcc", "HIP version: 6.4")


def make_hipcc(root: Path) -> None:
    hipcc = root / "bin" / "hipcc"
    hipcc.parent.mkdir(parents=True)
    hipcc.write_text("#!/bin/sh\necho 'HIP version: 6.4'\n")
    hipcc.chmod(0o755)


@pytest.mark.parametrize(
    ("installed", "variables", "expected"),
    [
        ([], {}, None),
        (["opt/rocm", "mine"], {"ROCM_PATH": "mine"}, "mine"),
        (["opt/rocm", "mine"], {"HIP_PATH": "mine"}, "mine"),
        # A path without hipcc does not hide the others.
        ([], {"ROCM_PATH": "empty"}, None),
        (["opt/rocm"], {"ROCM_PATH": "empty"}, "opt/rocm"),
        (["conda"], {"PATH": "conda/bin"}, "conda"),
        # Of several in /opt the newest.
        (["opt/rocm-6.4.1", "opt/rocm-10.0.0", "opt/rocm-7.0.0"], {}, "opt/rocm-10.0.0"),
    ],
)
def test_where_hipcc_is_found(
    installed: list[str],
    variables: dict[str, str],
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine without Debian's packages."""
    for variable in ("ROCM_PATH", "HIP_PATH"):
        monkeypatch.delenv(variable, raising=False)
    for variable, path in ({"PATH": "path"} | variables).items():
        monkeypatch.setenv(variable, str(tmp_path / path))
    monkeypatch.setattr(hip, "_OPT", tmp_path / "opt")
    (tmp_path / "opt").mkdir()
    monkeypatch.setattr(hip, "_SYSTEM_HEADER", tmp_path / "none.h")
    monkeypatch.setattr(hip, "_SYSTEM_HIPCC", tmp_path / "usr" / "hipcc")
    for path in installed:
        make_hipcc(tmp_path / path)
    compiler = record_of(Target.HIP).find_compiler()
    found = compiler.path if compiler else None
    assert found == (expected and str(tmp_path / expected / "bin" / "hipcc"))


def kfd_node(nodes: Path, number: int, **properties: int) -> None:
    (nodes / str(number)).mkdir(parents=True)
    text = "".join(f"{name} {value}\n" for name, value in properties.items())
    (nodes / str(number) / "properties").write_text(text)


@pytest.fixture
def kfd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(hip, "_KFD_NODES", tmp_path / "nodes")
    return tmp_path / "nodes"


def test_architectures_are_those_of_the_gpus(kfd: Path) -> None:
    kfd_node(kfd, 0, cpu_cores_count=64, simd_count=0, gfx_target_version=0)
    versions = {1: 90402, 2: 90402, 3: 90010, 10: 90500, 11: 110000, 12: 100302}
    for number, version in versions.items():
        kfd_node(kfd, number, simd_count=1216, gfx_target_version=version)
    assert archs_of_devices(Target.HIP) == ("gfx942", "gfx90a", "gfx950")
    assert count_devices(Target.HIP) == 4
    unusable = record_of(Target.HIP).find_devices().unusable
    assert [sentence.split(":")[0] for sentence in unusable] == [
        "the GPU of KFD node 11 is a gfx1100",
        "the GPU of KFD node 12 is a gfx1032",
    ]


def test_without_a_gpu_the_default_is_built_for(kfd: Path) -> None:
    assert archs_of_devices(Target.HIP) == ("gfx942",)


def test_gpus_of_other_containers_are_told_one_by_one(
    kfd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses to say anything about GPUs outside of the device cgroup."""
    for number in (1, 2, 3):
        kfd_node(kfd, number, simd_count=1216, gfx_target_version=90402)
    properties_of = hip._properties_of

    def refuse(node: Path) -> dict[str, int]:
        if node.name != "2":
            raise PermissionError(1, "Operation not permitted")
        return properties_of(node)

    monkeypatch.setattr(hip, "_properties_of", refuse)
    devices = record_of(Target.HIP).find_devices()
    assert devices.archs == ("gfx942",)
    lines = [check.found for check in checks.examine() if "KFD node" in check.found]
    assert lines == [
        "the GPU of KFD node 1 is not ours: Operation not permitted",
        "the GPU of KFD node 3 is not ours: Operation not permitted",
    ]


def test_several_architectures_can_be_named() -> None:
    options = BuildOptions(Target.HIP, "gfx90a,gfx942,gfx950", sanitizers=())
    flags = record_of(Target.HIP).library_flags(options, HIPCC)
    assert [flag for flag in flags if "arch" in flag] == [
        "--offload-arch=gfx90a",
        "--offload-arch=gfx942",
        "--offload-arch=gfx950",
    ]
    options = BuildOptions(Target.CUDA, "sm_90,sm_100", sanitizers=())
    assert cuda._arch_flags(options) == [
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_100,code=sm_100",
    ]


def test_a_recorder_is_built_for_the_device_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """MI200 and MI350 had none: device code without an architecture was always gfx942."""
    record = record_of(Target.HIP)
    monkeypatch.setitem(
        targets._RECORDS,
        Target.HIP,
        replace(record, find_devices=lambda: Devices(("gfx90a", "gfx90a"))),
    )
    assert BuildOptions(Target.HIP, sanitizers=()).archs == ("gfx90a",)


def shared_library(folder: Path, name: str, *flags: str) -> Path:
    path = folder / name
    command = ["cc", *flags, "-x", "c", "/dev/null", "-shared", "-o", str(path)]
    subprocess.run([*command, f"-Wl,-soname,{name}"], check=True)
    return path


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A library that asks the loader for the runtime of HIP 6."""
    runtime = shared_library(tmp_path, "libamdhip64.so.6")
    return shared_library(tmp_path, "kernels.so", "-Wl,--no-as-needed", str(runtime))


def share_runtime(kernels: Path, loaded: Path) -> subprocess.CompletedProcess[str]:
    """In a process that has loaded a runtime."""
    code = (
        "import ctypes, sys; from pathlib import Path\n"
        "runtime = ctypes.CDLL(sys.argv[2])\n"
        "from kprof.devices.hip import RECORD\n"
        "RECORD.before_loading(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(kernels), str(loaded)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_runtime_of_another_major_version_is_refused(kernels: Path, tmp_path: Path) -> None:
    other = shared_library(tmp_path, "libamdhip64.so.7")
    answer = share_runtime(kernels, other)
    assert answer.returncode != 0
    assert "TargetError: kernels are built with HIP 6 here, and this process has loaded HIP 7" in (
        answer.stderr
    )
    assert "set ROCM_PATH to a ROCm 7" in answer.stderr


def test_a_runtime_of_the_same_version_is_shared(kernels: Path, tmp_path: Path) -> None:
    assert share_runtime(kernels, tmp_path / "libamdhip64.so.6").returncode == 0


def test_without_a_loaded_runtime_nothing_is_asked(kernels: Path) -> None:
    assert hip._wanted_major(kernels) == 6
    assert share_runtime(kernels, Path(ctypes.util.find_library("c") or "")).returncode == 0


def test_a_target_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "find_compiler", lambda target: None)
    with pytest.raises(TargetError, match="the target hip cannot be used here: no compiler found"):
        targets.require_target(Target.HIP)


def test_nvcc_of_a_python_package_finds_the_runtime(tmp_path: Path) -> None:
    """Its libraries are in `lib`, and it looks in `lib64`."""
    nvcc = Compiler(str(tmp_path / "cu13" / "bin" / "nvcc"), "release 13.0", None)
    assert cuda.link_flags(nvcc) == []
    libraries = tmp_path / "cu13" / "lib"
    libraries.mkdir(parents=True)
    (libraries / "libcudart_static.a").touch()
    options = BuildOptions(Target.CUDA, "sm_90", sanitizers=())
    assert f"-L{libraries}" in record_of(Target.CUDA).library_flags(options, nvcc)


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
