"""AMD thread trace: a folder with occupancy, one traced wave and real times."""

from __future__ import annotations

import json
from pathlib import Path

from foreign_files import Row

OCCUPANCY = {
    "0": [
        [1000, 3, 1, 0, 1, 5],
        [1100, 4, 0, 2, 1, 5],
        [2000, 3, 1, 0, 0, 5],
        [2600, 4, 0, 2, 0, 5],
    ],
    "1": [[1200, 0, 0, 0, 1, 5], [1800, 0, 0, 0, 0, 5]],
    "dispatches": {"5": "gemm"},
    "version": "3.0.0",
}
WAVE = {
    "begin": 1000,
    "end": 2000,
    "cu": 3,
    "id": 0,
    "simd": 1,
    "slot": 0,
    "timeline": [[2, 400], [3, 200], [0, 100], [4, 300]],
}
STATES = ("empty", "idle", "exec", "wait", "stall")


def make(folder: Path) -> list[Path]:
    trace = folder / "ui_output_agent_1_dispatch_5"
    trace.mkdir()
    (trace / "filenames.json").write_text(
        json.dumps({"global_begin_time": 0, "gfxv": "vega", "wave_filenames": {}})
    )
    (trace / "occupancy.json").write_text(json.dumps(OCCUPANCY))
    (trace / "se0_sm1_sl0_wv0.json").write_text(
        json.dumps({"name": "gemm", "duration": 1000, "wave": WAVE})
    )
    # 20 shader clocks a tick of 10 ns.
    records = [
        {"shader_clock": 0, "realtime_clock": 500},
        {"shader_clock": 40000, "realtime_clock": 2500},
    ]
    (trace / "realtime.json").write_text(json.dumps(records))
    return [trace]


def read(files: list[Path]) -> list[Row]:
    rows = []
    for rank, folder in enumerate(files):
        file = json.loads((folder / "occupancy.json").read_text())
        for se in (0, 1):
            for time, cu, simd, slot, is_start, _ in file[str(se)]:
                if is_start:
                    ends = [
                        e[0] for e in file[str(se)] if e[1:5] == [cu, simd, slot, 0] and e[0] > time
                    ]
                    took = (min(ends) - time) // 2
                    rows.append(
                        Row(rank, se * 256 + cu, simd * 256 + slot, "wave", time // 2, took)
                    )
        wave = json.loads((folder / "se0_sm1_sl0_wv0.json").read_text())["wave"]
        time = wave["begin"]
        for state, cycles in wave["timeline"]:
            if state:
                rows.append(
                    Row(rank, wave["cu"], wave["simd"] * 256, STATES[state], time // 2, cycles // 2)
                )
            time += cycles
    return rows
