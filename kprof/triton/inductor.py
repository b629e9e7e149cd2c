"""Kernels that torch.compile makes (Inductor): a span per program, for `kprof record --inductor`.

Inductor launches its Triton kernels through CachingAutotuner.run, which compiles, tunes and
launches. We wrap it. Until a kernel's configuration is decided, Inductor launches it as usual,
unrecorded. From then on we launch a copy with a span around the whole kernel (kp.instrument), with
the configuration, options and grid that Inductor has chosen. If that fails for a kernel, one line
on stderr says so, and Inductor launches it.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from kprof.errors import RecorderError, TargetError
from kprof.recording.lifetime import complain
from kprof.triton.instrument import Instrumented, instrument

# The tests launch kernels through the CachingAutotuner of these versions.
TESTED_TORCH: Final = ("2.11", "2.13")
ANY_VERSION_VARIABLE: Final = "KPROF_TORCH_ANY_VERSION"
# Put first in PYTHONPATH: its sitecustomize.py calls wrap_launcher before torch launches a kernel.
STARTUP_DIR: Final = Path(__file__).parent / "startup"


def check_torch(version: str) -> None:
    """Raises TargetError for an untested torch, unless KPROF_TORCH_ANY_VERSION=1."""
    if ".".join(version.split(".")[:2]) in TESTED_TORCH:
        return
    if os.environ.get(ANY_VERSION_VARIABLE) == "1":
        return
    raise TargetError(
        f"--inductor is tested with torch {' and '.join(TESTED_TORCH)}, and this is torch "
        f"{version}; install one of those, or set {ANY_VERSION_VARIABLE}=1 to try this one"
    )


def wrap_launcher(module: ModuleType) -> None:
    """Wraps CachingAutotuner.run of torch._inductor.runtime.triton_heuristics.

    Raises TargetError, see check_torch.
    """
    import torch

    check_torch(torch.__version__)
    launches = _Launches(module)
    original = module.CachingAutotuner.run

    @wraps(original)
    def run(tuner: Any, *args: Any, stream: Any, benchmark_run: bool = False, **kwargs: Any) -> Any:
        if not benchmark_run and not kwargs and launches.launch(tuner, args):
            return None
        result = original(tuner, *args, stream=stream, benchmark_run=benchmark_run, **kwargs)
        launches.is_ours.setdefault(tuner, True)
        return result

    module.CachingAutotuner.run = run


class _Launches:
    """Instrumented copies by tuner.

    Not stored on the tuners, because Inductor pickles those.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        # True once Inductor has launched the kernel, and so decided. False if our copy cannot be
        # used.
        self.is_ours: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._copies: WeakKeyDictionary[Any, Instrumented] = WeakKeyDictionary()

    def launch(self, tuner: Any, args: tuple[Any, ...]) -> bool:
        """Launches the instrumented copy. False if Inductor should launch the kernel."""
        if not self.is_ours.get(tuner, tuner.triton_interpret or _needs_no_tuning(tuner)):
            return False
        try:
            copy = self._copies.get(tuner)
            if copy is None:
                copy = self._copies[tuner] = _instrumented(tuner)
            if tuner.triton_interpret:
                config = tuner.configs[0]
                positional, grid = tuner._interpret_args_grid(args, config)
                copy[grid](*positional, **config.kwargs)
            else:
                self._launch_compiled(tuner, copy, args)
        except Exception as error:
            # Everything that can fail (reading the source and the arguments, compiling) comes
            # before the kernel runs.
            self.is_ours[tuner] = False
            complain(f"{tuner.fn.__name__} of torch.compile is not recorded: {error}")
            return False
        return True

    def _launch_compiled(self, tuner: Any, copy: Instrumented, args: tuple[Any, ...]) -> None:
        (launcher,) = tuner.launchers
        meta = tuner._create_compile_meta(launcher.config)
        options = tuner._create_compile_options(launcher.config, meta)
        # Inductor generated this function: the kernel's parameters, sometimes those of the grid,
        # and the stream.
        named = dict(zip(inspect.signature(launcher).parameters, args, strict=False))
        expression = self._module.GridExpr.from_meta(tuner.inductor_meta, launcher.config)
        grid = tuple(expression.eval_slow(named))
        known = set(copy.kernel.arg_names)
        values = {**meta["constants"], **named}
        arguments = {name: value for name, value in values.items() if name in known}
        copy[grid](**arguments, **options)


def _needs_no_tuning(tuner: Any) -> bool:
    meta = tuner.inductor_meta
    return len(tuner.launchers) == 1 and not (
        meta.get("coordinate_descent_tuning") or meta.get("combo_tuning_groups")
    )


def _instrumented(tuner: Any) -> Instrumented:
    """The kernel with a span around it that has its name.

    Numbers have the types that Inductor declares.
    """
    name = tuner.fn.__name__
    types = {
        argument: kind
        for argument, kind in tuner.triton_meta["signature"].items()
        if isinstance(kind, str)
        and kind != "constexpr"
        and not kind.startswith(("*", "tensordesc"))
    }
    return instrument(_with_source(tuner), at={name: ...}, types=types)


def _with_source(tuner: Any) -> Any:
    """The kernel, with its function.

    Kernels from a compile worker come without it, so it is loaded from their file.
    """
    if tuner.fn.fn is not None:
        return tuner.fn
    if tuner.filename is None:
        raise RecorderError("its source is not known")
    spec = importlib.util.spec_from_file_location(f"kprof_{tuner.fn.__name__}", tuner.filename)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, tuner.fn.__name__).fn
