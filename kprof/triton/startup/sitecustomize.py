"""`kprof record --inductor` runs this at the start of every Python process of the workload, by
PYTHONPATH.

Hooks the import of the module that launches the kernels of torch.compile, then makes way for the
sitecustomize that this one hides, if there is one. A workload may start any Python: this file has
to run with 3.6.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Imports as little as possible.
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH120, PTH100
_LAUNCHER = "torch._inductor.runtime.triton_heuristics"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the launcher's module in the usual way, and wraps the launcher once it is loaded."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "importlib.machinery.ModuleSpec | None":
        del path, target
        if name != _LAUNCHER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _wrap(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(module: ModuleType) -> None:
    """Start recording with the first launch, because compile workers import this and launch
    nothing."""
    original = module.CachingAutotuner.run
    # What launches from the first launch on.
    launch: Any = None

    def first_run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal launch
        # Whoever took this function before the first launch calls it again: max-autotune does.
        if launch is None:
            launch = module.CachingAutotuner.run = original
            try:
                from kprof.triton.inductor import wrap_launcher

                wrap_launcher(module)
            except Exception as error:
                sys.stderr.write(f"kprof: kernels of torch.compile are not recorded: {error}\n")
            launch = module.CachingAutotuner.run
        return launch(tuner, *args, **kwargs)

    module.CachingAutotuner.run = first_run


if "KPROF_RECORD_DIR" in os.environ or "KPROF_TIMINGS_DIR" in os.environ:
    sys.meta_path.insert(0, _Finder())
# From here on all is as without this file: who imports sitecustomize gets the hidden one, or none.
sys.path[:] = [path for path in sys.path if path != _HERE]
sys.modules.pop("sitecustomize", None)
importlib.import_module("sitecustomize")
