"""Kernels that torch.compile makes (Inductor): a span per program, for `kprof record --inductor`.

Inductor compiles and tunes a Triton kernel, then launches it through one function, its launcher.
Once a kernel is tuned, we compile a copy with a span around each program, with the configuration,
options and grid that Inductor has chosen, and put a launcher in the place of Inductor's: the same
code, which passes four numbers more to the copy. On NVIDIA the span is put into the compiled code
(spliced.py), so that the copy computes the same to the last bit.

A launch is Inductor's own, unrecorded, while the kernel is tuned, where kprof records nothing, and
after anything of ours has failed. The first failure of a kernel is one line on stderr. Copies are
compiled and loaded before a launch, but never while a graph is captured: a kernel whose first
launch is captured stays unrecorded in that graph.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from math import prod
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from kprof.devices import captures
from kprof.devices.gpu import is_capturing
from kprof.devices.on_use import torch
from kprof.errors import RecorderError
from kprof.recording.endings.complaints import complain, complain_once
from kprof.recording.launches.whole_launch import Whole
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder
from kprof.recording.rank.process import recorder as process_recorder
from kprof.triton.buffer import words_of
from kprof.triton.compiled import note_launcher
from kprof.triton.instrument import WORDS, with_whole_span, with_words
from kprof.triton.regions import Regions
from kprof.triton.versions import check_tested

if TYPE_CHECKING:
    from kprof.recording.arenas.turns import Room

# The tests launch kernels through the CachingAutotuner of these versions.
TESTED_TORCH: Final = ("2.11", "2.13")
ANY_VERSION_VARIABLE: Final = "KPROF_TORCH_ANY_VERSION"
# Put first in PYTHONPATH: its sitecustomize.py calls wrap_launcher before torch launches a kernel.
STARTUP_DIR: Final = Path(__file__).parent / "startup"


def check_torch(version: str) -> None:
    """Raises TargetError for an untested torch, unless KPROF_TORCH_ANY_VERSION=1."""
    check_tested("--inductor", "torch", version, TESTED_TORCH, ANY_VERSION_VARIABLE)


# Inductor calls a kernel so while it compares how to make it: what is recorded has another name.
_CANDIDATES: Final = ("triton_", "Placeholder.DESCRIPTIVE_NAME")
# An attribute of graphs: where their replays record.
_ROOM: Final = "room_of_kprof"
# Inductor logs a traceback where a kernel does not compile; of a copy we say it in a line.
_SILENT: Final = logging.Logger("kprof", logging.CRITICAL + 1)
# An attribute of our launchers: Inductor's.
_ORIGINAL: Final = "launcher_of_inductor"


def wrap_launcher(module: ModuleType) -> None:
    """Wraps CachingAutotuner.run of torch._inductor.runtime.triton_heuristics.

    Raises TargetError, see check_torch.
    """
    check_torch(torch.__version__)
    copies = _Copies()
    _announce_replays(torch.cuda.CUDAGraph, copies)
    original = module.CachingAutotuner.run

    @wraps(original)
    def run(tuner: Any, *args: Any, stream: Any, benchmark_run: bool = False, **kwargs: Any) -> Any:
        launchers = tuner.launchers
        is_ours = len(launchers) == 1 and hasattr(launchers[0], _ORIGINAL)
        if is_ours and not benchmark_run:
            return original(tuner, *args, stream=stream, **kwargs)
        if is_ours:
            tuner.launchers = [getattr(launchers[0], _ORIGINAL)]
        elif not benchmark_run:
            if tuner.triton_interpret and not kwargs and copies.interpret(tuner, args):
                return None
            if not _is_searched(tuner):
                copies.take_over(tuner)
        result = original(tuner, *args, stream=stream, benchmark_run=benchmark_run, **kwargs)
        if is_ours:
            tuner.launchers = launchers
        elif not benchmark_run:
            copies.take_over(tuner)
        return result

    module.CachingAutotuner.run = run


def _announce_replays(graphs: Any, copies: _Copies) -> None:
    """Tells the recorder of every capture, and of every replay of a graph, before and after it."""
    captures.watch(graphs)
    begin, end, original = graphs.capture_begin, graphs.capture_end, graphs.replay

    @wraps(begin)
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
        begin(graph, *args, **kwargs)
        graph.__dict__.pop(_ROOM, None)
        if copies.recorder is not None:
            with suppress(Exception):
                copies.recorder.note_capture(is_end=False)

    @wraps(end)
    def capture_end(graph: Any) -> None:
        if copies.recorder is not None:
            # Without a room its programs claim chunks. A capture that has failed refuses ours, too.
            with suppress(Exception):
                setattr(graph, _ROOM, copies.recorder.note_capture(is_end=True))
        end(graph)

    def fail(error: Exception) -> None:
        copies.recorder = None
        complain(f"graphs may lose events: {error}")

    @wraps(original)
    def replay(graph: Any) -> None:
        room: Room | None = getattr(graph, _ROOM, None)
        was_ready = room is not None and room.take()
        if not was_ready and copies.recorder is not None:
            try:
                copies.recorder.note_replay(id(graph), room)
            except Exception as error:
                fail(error)
        original(graph)
        if copies.recorder is not None:
            try:
                copies.recorder.note_replayed(id(graph), room, was_ready=was_ready)
            except Exception as error:
                fail(error)

    graphs.capture_begin, graphs.capture_end, graphs.replay = capture_begin, capture_end, replay


# Launches a kernel: the blocks in x, y and z, the stream, and more.
Runner = Callable[..., object]


class _Copies:
    """The instrumented copies, each made once."""

    def __init__(self) -> None:
        # Launchers of Inductor's, and tuners that are interpreted. Not noted on the tuners, because
        # Inductor pickles those.
        self._tried: WeakSet[Any] = WeakSet()
        self._interpreted: WeakKeyDictionary[Any, _Copy] = WeakKeyDictionary()
        self.recorder: AnyRecorder | None = None

    def take_over(self, tuner: Any) -> None:
        """Puts our launcher in the place of the one that Inductor has decided on."""
        if len(tuner.launchers) != 1 or _name_of(tuner) in _CANDIDATES:
            return
        # Inductor makes new ones of a kernel that it has tuned, where another graph uses it, too.
        launcher = tuner.launchers[0]
        if launcher in self._tried or hasattr(launcher, _ORIGINAL):
            return
        if launcher.store_cubin:
            _tell_of_cpp()
            return
        if is_capturing():
            _tell_of_capture()
            return
        # What loads a copy, or waits for the device, would make the capture of another thread fail.
        if captures.go_on():
            return
        self._tried.add(launcher)
        try:
            recorder = process_recorder(device=f"cuda:{tuner.triton_meta['device'] or 0}")
            if not recorder.is_recording:
                return
            tuner.launchers = [_launcher(tuner, recorder)]
            self.recorder = recorder
            # Newer versions of torch remember the one before.
            if hasattr(tuner, "_cached_launcher"):
                tuner._cached_launcher = None
        except Exception as error:
            _tell(tuner, error)

    def interpret(self, tuner: Any, args: tuple[Any, ...]) -> bool:
        """Launches a copy in Triton's interpreter; false if Inductor should launch the kernel."""
        if tuner in self._tried and tuner not in self._interpreted:
            return False
        self._tried.add(tuner)
        try:
            found = self._interpreted.get(tuner) or _copy_of(tuner, process_recorder())
            self._interpreted[tuner] = found
            config = tuner.configs[0]
            positional, grid = tuner._interpret_args_grid(args, config)
            words = found.recorder.launch_whole(found.of(prod(grid)), None)
            if words is None:
                return False
            named = dict(zip(WORDS, words, strict=True))
            found.kernel[grid](*positional, **config.kwargs, **named)
        except Exception as error:
            self._interpreted.pop(tuner, None)
            _tell(tuner, error)
            return False
        return True


def _name_of(tuner: Any) -> str:
    """Inductor's name of a kernel. All functions have one with config.triton.unique_kernel_names
    off."""
    name: str = tuner.fn.__name__
    return tuner.inductor_meta.get("kernel_name", name) if name in _CANDIDATES else name


def _tell(tuner: Any, error: Exception) -> None:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    complain(f"{_name_of(tuner)} of torch.compile is not recorded: {reason}")


def _tell_of_cpp() -> None:
    complain_once(
        "kernels of torch.compile that C++ launches (cpp_wrapper, AOTInductor) are not recorded"
    )


def _tell_of_capture() -> None:
    complain_once(
        "kernels of torch.compile that are launched for the first time while a graph is captured "
        "are not recorded in it; launch everything once before"
    )


def _is_searched(tuner: Any) -> bool:
    """Whether Inductor looks for a better configuration in the first launch."""
    meta = tuner.inductor_meta
    return bool(meta.get("coordinate_descent_tuning") or meta.get("combo_tuning_groups"))


class _Copy:
    """An instrumented kernel, and its launches by the number of programs."""

    def __init__(self, kernel: Any, name: str, regions: Regions, recorder: AnyRecorder) -> None:
        self.kernel, self.name, self.recorder = kernel, name, recorder
        self._table = regions.table
        self._known: dict[int, Whole] = {}

    def of(self, num_blocks: int) -> Whole:
        """Launches of so many programs."""
        found = self._known.get(num_blocks)
        if found is None:
            found = self._known[num_blocks] = Whole(self.name, self._table, num_blocks, words_of)
        return found


def _copy_of(tuner: Any, recorder: AnyRecorder) -> _Copy:
    name = _name_of(tuner)
    copy_with_words = with_words if _is_spliced(tuner) else with_whole_span
    kernel, regions = copy_with_words(_with_source(tuner), name)
    return _Copy(kernel, name, regions, recorder)


def _is_spliced(tuner: Any) -> bool:
    """Whether the span is put into PTX and not into the source."""
    return tuner.device_props.type == "cuda" and not tuner.triton_interpret


class _Splicing:
    """Stands for the module `triton` where Inductor compiles a copy."""

    def __init__(self, plain: Any, folder: str) -> None:
        self._plain, self._folder = plain, folder

    def compile(self, source: Any, target: Any, options: dict[str, Any]) -> Any:
        """As triton.compile, but with a span in the code of the kernel itself."""
        from triton.compiler.compiler import ASTSource

        from kprof.triton.spliced import compiled_with_span

        signature = {name: kind for name, kind in source.signature.items() if name not in WORDS}
        plain = ASTSource(self._plain, signature, source.constants, source.attrs)
        return compiled_with_span(plain, source, target, options, self._folder)


def _launcher(tuner: Any, recorder: AnyRecorder) -> FunctionType:
    """Inductor's launcher with our runner: its function computes the grid and calls the runner.

    Raises RecorderError, and what Triton raises.
    """
    original = tuner.launchers[0]
    copy = _copy_of(tuner, recorder)
    clone = _tuner_of_copy(tuner, copy.kernel)
    with torch.cuda.device(tuner.triton_meta["device"] or 0):
        launcher = clone._precompile_config(original.config).make_launcher()
    note_launcher(copy.name, launcher, getattr(tuner.device_props, "warp_size", None))
    if getattr(launcher, "_is_static", False) != getattr(original, "_is_static", False):
        raise RecorderError("torch would launch its copy in another way")
    run = launcher.__globals__["runner"]
    runner = _runner_of(copy, run, _runner(original), partial(_tell, tuner))
    scope = {**launcher.__globals__, "runner": runner}
    ours = FunctionType(original.__code__, scope, original.__name__, original.__defaults__)
    ours.__dict__.update(original.__dict__)
    # Newer versions of torch take the runner out of a launcher that has this.
    ours.__dict__.pop("_is_static", None)
    ours.__dict__[_ORIGINAL] = original
    return ours


def _runner_of(
    copy: _Copy, run: Runner, run_original: Runner, tell: Callable[[Exception], None]
) -> Runner:
    """A runner that launches the copy with `run`, where the launch is recorded."""
    launch_whole, latest = copy.recorder.launch_whole, copy.of(0)

    def runner(*arguments: Any) -> None:
        """Unpacks nothing: a tuple of all is what the launch wants."""
        nonlocal launch_whole, latest
        num_blocks = arguments[0] * arguments[1] * arguments[2]
        whole = latest
        if whole.num_blocks != num_blocks:
            latest = whole = copy.of(num_blocks)
        try:
            if words := launch_whole(whole, arguments[3]):
                # The kernel's arguments come last.
                run(*(arguments + words))
                return
        except Exception as error:
            # What can fail comes before the copy runs on the GPU.
            launch_whole = NullRecorder().launch_whole
            tell(error)
        run_original(*arguments)

    return runner


def _runner(launcher: Any) -> Runner:
    """The runner of Inductor's launcher for arguments that the launcher of a copy passes."""
    scope = launcher.__globals__
    run: Runner = scope["runner"]
    if "function" not in scope:
        return run

    def runner(x: int, y: int, z: int, stream: int, *rest: Any) -> None:
        # The first two are the function and the metadata of the copy.
        run(x, y, z, stream, scope["function"], scope["metadata"], *rest[2:])

    return runner


def _tuner_of_copy(tuner: Any, kernel: Any) -> Any:
    """Inductor's tuner, but of our copy."""
    clone = object.__new__(type(tuner))
    clone.__dict__.update(tuner.__dict__)
    clone.fn = kernel
    signature = {**tuner.triton_meta["signature"], **dict.fromkeys(WORDS, "i64")}
    clone.triton_meta = {**tuner.triton_meta, "signature": signature}
    if _is_spliced(tuner):
        compiles = type(clone)._precompile_config
        # Of a launcher, where Triton's cache has its kernel.
        folder = next((getattr(each, "cache_hash", "") for each in tuner.launchers), "")
        splicing = _Splicing(_with_source(tuner), folder)
        scope = {**compiles.__globals__, "triton": splicing, "log": _SILENT}
        if "triton" not in compiles.__code__.co_names:
            raise RecorderError("torch compiles kernels in another way")
        clone._precompile_config = partial(FunctionType(compiles.__code__, scope), clone)
    return clone


def _with_source(tuner: Any) -> Any:
    """The kernel, with its function.

    Kernels from a compile worker come without it: Inductor loads it again, or it is in their file.
    """
    if tuner.fn.fn is not None:
        return tuner.fn
    if reload := getattr(tuner, "_reload_kernel", None):
        return reload().fn
    if tuner.filename is None:
        raise RecorderError("its source is not known")
    spec = importlib.util.spec_from_file_location(f"kprof_{tuner.fn.__name__}", tuner.filename)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, tuner.fn.__name__).fn
