"""Records a run that a fault of its own ends; test_faults_gpu.py starts it under `kprof record`.

usage: run_until_fault.py {trap,illegal_address,killed} DEVICE [NUM_CALLS]

Without a number of calls, it waits until something is drained.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import kprof
from benchmarks.draining import Work
from kprof.devices import gpu
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import arch_of_device, target_of_device
from kprof.recording.rank.process import RECORD_DIR_VARIABLE

NUM_BLOCKS = 16
NUM_LATE_CALLS = 3
KERNEL = """
#include <kprof/kprof.h>
using namespace kprof::platform;
#if defined(__CUDACC__)
#define TRAP() __trap()
#else
#define TRAP() __builtin_trap()
#endif
__global__ void fault(unsigned* address, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  kprof::profile_mark(track, 1, 0);
  if (address == nullptr) TRAP();
  *address = 1;
}
extern "C" int run_fault(const kprof::LaunchBuffer* buffer, unsigned* address) {
  return KPROF_LAUNCH(fault, 1, 64, nullptr, 0, address, kprof::make_buffer(*buffer));
}
"""


def main(how: str, device: str, num_calls: str = "0") -> None:
    device = gpu.with_number(device)
    work = Work.on(device, NUM_BLOCKS, 1e6)
    directory = Path(os.environ[RECORD_DIR_VARIABLE])
    recorder = kprof.recorder(device=device)
    for _ in range(int(num_calls)):
        work.call(recorder)
        recorder.step()
    while not int(num_calls) and not any(directory.glob("part-*.parquet")):
        work.call(recorder)
        recorder.step()
        time.sleep(0.01)
    # The thread that drains switches again when it sees fit, so some of these may be written, too.
    for _ in range(NUM_LATE_CALLS):
        work.call(recorder)
        recorder.step()
    gpu.synchronize(device)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "fault.hip"
        source.write_text(KERNEL)
        options = BuildOptions(target_of_device(device), arch_of_device(device))
        library = load_library(source, options)
    buffer = recorder.launch("fault", ["mark"], num_blocks=1, tracks_per_block=1)
    address = None if how == "trap" else ctypes.c_void_p(64)
    library.run_fault(buffer.packed(), address)
    gpu.synchronize(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
