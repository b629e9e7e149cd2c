"""Whether `kprof record --inductor` changes results of a compiled model, and if so, the first kernel that does.

    python -m benchmarks.same_results FOLDER

One GPU, some minutes, the modes beside each other. Runs tests/real/programs/llama.py (eval, decode, train) twice without kprof and twice with it, each with
an empty cache of its own: a program whose plain runs differ is not deterministic, because Inductor measures which of
several configurations is faster, and they add up in other orders. Then once more in one cache for all: what differs there is
ours. In that one every launch that is not captured runs twice, by Inductor and by us, and outputs are compared bit for bit.
Leaves same_results.json in FOLDER: per mode and run the printed value, the exit code, and the configurations that Inductor
chose; and for each kernel that differed its name, configuration, and how many numbers.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.runs import ROOT, output_folder

PROGRAM = ROOT / "tests" / "real" / "programs" / "llama.py"
WAYS = ("plain", "recorded")
MODES = ("eval", "decode", "train")
LAYERS = "2"
# Ended with code 124 after that.
LIMIT_S = 120
DIFFERENT = "different "


def run(
    folder: Path, mode: str, cache: Path, *, is_recorded: bool, is_checked: bool = False
) -> Any:
    """One run of the program: what it printed, how it ended, and what was chosen for each kernel."""
    program = [str(PROGRAM), mode, LAYERS]
    command = [sys.executable, *program]
    if is_checked:
        command = [sys.executable, "-m", "benchmarks.same_results", "--both", *program]
    if is_recorded:
        kprof = [sys.executable, "-m", "kprof_cli", "record", "--force", "--inductor"]
        command = [*kprof, "-o", str(folder / f"{cache.name}.kprof"), "--", *command]
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": path}
    answer = subprocess.run(
        ["timeout", "-k", "1", str(LIMIT_S), *command],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = answer.stdout.splitlines()
    return {
        "exit_code": answer.returncode,
        "values": [line for line in lines if line.startswith("value ")],
        "different": [
            json.loads(line[len(DIFFERENT) :]) for line in lines if line.startswith(DIFFERENT)
        ],
        "chosen": chosen(cache),
        "said": [line for line in answer.stderr.splitlines() if line.startswith("kprof")],
        "errors": answer.stderr[-2000:] if answer.returncode else "",
    }


def chosen(cache: Path) -> dict[str, str]:
    """By the hash of a kernel's source, the configuration that Inductor found to be the fastest."""
    return {path.stem: path.read_text() for path in sorted(cache.rglob("*.best_config"))}


def compare_launches() -> None:
    """From now on, in this process, launches run by Inductor as well, on copies of the tensors."""
    import torch

    from kprof.triton import inductor

    make = inductor._launcher
    reported: set[str] = set()

    def checked(tuner: Any, recorder: Any) -> Any:
        ours = make(tuner, recorder)
        plain = getattr(ours, inductor._ORIGINAL)

        def launch(*args: Any, stream: Any, **kwargs: Any) -> None:
            if torch.cuda.is_current_stream_capturing():
                ours(*args, stream=stream, **kwargs)
                return
            copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
            plain(*copies, stream=stream, **kwargs)
            ours(*args, stream=stream, **kwargs)
            name = tuner.fn.__name__
            for idx, (a, b) in enumerate(zip(args, copies, strict=True)):
                if isinstance(a, torch.Tensor) and name not in reported:
                    same = (a == b) | ((a != a) & (b != b))
                    if not bool(same.all()):
                        reported.add(name)
                        print(
                            DIFFERENT
                            + json.dumps([name, idx, int((~same).sum()), str(plain.config)])
                        )

        launch.__dict__.update(ours.__dict__)
        return launch

    inductor._launcher = checked


def runs_of(folder: Path, mode: str) -> Any:
    """All runs of one mode, by their names."""
    caches = {
        f"{way} {idx}": folder / f"cache-{mode}-{way}-{idx}" for way in WAYS for idx in (1, 2)
    }
    plain = caches["plain 1"]
    runs: dict[str, Any] = {}

    def keep(name: str, cache: Path, **ways: bool) -> None:
        runs[name] = each = run(folder, mode, cache, **ways)
        print(mode, name, each["exit_code"], each["values"], each["different"], flush=True)

    keep("plain 1", plain, is_recorded=False)
    keep("recorded, in the cache of plain 1", plain, is_recorded=True)
    keep("both ways, in the cache of plain 1", plain, is_recorded=True, is_checked=True)
    for name, cache in caches.items():
        if cache != plain:
            keep(name, cache, is_recorded=not name.startswith("plain"))
    return runs


def main() -> None:
    folder = output_folder(__doc__)
    with ThreadPoolExecutor(len(MODES)) as pool:
        results = dict(zip(MODES, pool.map(partial(runs_of, folder), MODES), strict=True))
    (folder / "same_results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--both"]:
        compare_launches()
        sys.argv = sys.argv[2:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main()
