"""What kernels take is known once Triton has compiled one that records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from needed import require_triton

require_triton()

import sample_kernels  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from compiled import TARGETS  # noqa: E402
from triton.compiler.compiler import CompiledKernel, make_backend  # noqa: E402
from triton.runtime.jit import JITFunction, create_function_from_signature  # noqa: E402

from kprof.devices import resources  # noqa: E402
from kprof.devices.resources import Resources  # noqa: E402
from kprof.recording.launches.launch_buffer import LaunchBuffer  # noqa: E402
from kprof.triton.buffer import pack  # noqa: E402
from kprof.triton.compiled import look_at_compilations, note_launcher  # noqa: E402

LAUNCH = LaunchBuffer(1 << 40, 5, 100, 1, 64, 32, 32)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_known", {})
    monkeypatch.setattr(JITFunction, "_do_compile", JITFunction._do_compile)


class Loaded(CompiledKernel):  # type: ignore[misc]
    """A compiled kernel, whose registers are known when it is loaded."""

    module: None = None
    n_regs: int | None = None
    n_spills: int | None = None

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata

    @property
    def run(self) -> None:
        self.n_regs, self.n_spills = 40, 3


def compile_on_device_0(kernel: Any, prof: Any, n: Any = 7, *, warmup: bool = False) -> None:
    """As a first launch does, on a GPU that is not here: Triton's own code but for the compiler."""
    target = TARGETS["sm_90"]
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = binder(prof, n, debug=False)
    key = triton.runtime.jit.compute_cache_key({}, specialization, options)
    options, signature, constexprs, attrs = kernel._pack_args(
        backend, {"debug": False}, bound, specialization, options
    )
    kernel.device_caches[0] = ({}, {}, target, backend, binder)
    metadata = SimpleNamespace(num_warps=4, shared=2048, target=target)
    kernel.compile = lambda *_, **__: Loaded(metadata)
    kernel._do_compile(key, signature, 0, constexprs, options, attrs, warmup)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    kernel = sample_kernels.marks
    monkeypatch.setattr(kernel, "device_caches", {})
    monkeypatch.setattr(kernel, "compile", None, raising=False)
    monkeypatch.setattr(kernel, "ASTSource", lambda *_: None, raising=False)
    return kernel


def test_kernels_that_record_are_known_when_they_are_loaded(kernel: Any) -> None:
    prof = pack(LAUNCH, sample_kernels.mark_regions)
    compile_on_device_0(kernel, prof, warmup=True)
    assert resources.of_launches("mine/marks") == []
    compile_on_device_0(kernel, prof)
    assert resources.of_launches("mine/marks") == [Resources(40, 12, 2048, 128)]


def test_kernels_that_do_not_record_are_left_alone(kernel: Any) -> None:
    look_at_compilations()
    compile_on_device_0(kernel, None)
    assert resources._known == {}


class Layout:
    """A constant that json does not know, like those of Gluon."""

    cache_key = "layout"


def test_constants_of_other_kernels_are_left_alone(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a hook, Triton makes JSON of them, and ends the launch if that fails."""
    look_at_compilations()
    compile_on_device_0(kernel, None, tl.constexpr(Layout()))


def test_a_hook_is_still_called(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime,
        "jit_post_compile_hook",
        lambda *, fn, **_: heard.append(fn.name),
    )
    for _ in range(3):
        prof = pack(LAUNCH, sample_kernels.mark_regions)
    compile_on_device_0(kernel, prof)
    assert heard == ["marks"]


@pytest.mark.parametrize(
    ("launcher", "known"),
    [
        ({"n_regs": 40, "n_spills": 0, "shared": 64, "config": SimpleNamespace(num_warps=8)}, 256),
        ({"n_regs": 40, "n_spills": 0, "shared": 64}, 0),
        ({"n_regs": None, "n_spills": None, "shared": 64}, None),
        ({"n_regs": 40, "n_spills": 0, "shared": "64"}, None),
        ({}, None),
    ],
)
def test_launchers_of_inductor_say_it(launcher: dict[str, Any], known: int | None) -> None:
    note_launcher("triton_poi_0", SimpleNamespace(**launcher), 32)
    found = resources.of_launches("triton_poi_0")
    assert found == ([] if known is None else [Resources(40, 0, 64, known)])
