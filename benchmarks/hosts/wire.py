"""A network with delay and jitter between namespaces, for kernels whose `tc` has no netem: a device in each of them,
and this process, which reads every packet and writes it later. Started by `python -m benchmarks.hosts`.

Packets of two hosts stay in order, as in a queue. What it takes to handle packets that come at once comes on top.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import struct
import subprocess
from pathlib import Path

import kprof

HERE = Path(__file__).parent
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_PR_SET_TIMERSLACK = 29


def address(number: int) -> str:
    """Of the device in a namespace, by its place among them."""
    return f"10.78.0.{number + 1}"


def opened(name: str, number: int) -> int:
    """A file of the packets that leave and reach a new device in a namespace, which this process enters for that."""
    with Path("/run/netns", name).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name}")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", b"wire", _IFF_TUN_NO_PI))
    for command in (f"addr add {address(number)}/24 dev wire", "link set wire up"):
        subprocess.run(["ip", *command.split()], check=True)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", type=lambda text: text.split(","), required=True)
    parser.add_argument("--delay-us", type=float, required=True)
    parser.add_argument("--jitter-us", type=float, required=True)
    parser.add_argument("--ready", type=Path, required=True)
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    # A network does not wait for a core.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    library = kprof.load_library(HERE / "wire.hip", kprof.BuildOptions.for_device("cpu"))
    files = [opened(name, number) for number, name in enumerate(given.names)]
    given.ready.touch()
    times_ns = (ctypes.c_uint64(round(us * 1e3)) for us in (given.delay_us, given.jitter_us))
    numbers = (ctypes.c_int32 * len(files))(*files)
    library.wire_carry(numbers, len(files), *times_ns, ctypes.c_uint64(33))


if __name__ == "__main__":
    main()
