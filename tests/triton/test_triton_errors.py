"""Wrong use is refused in a sentence, most of it while the kernel is compiled."""

from __future__ import annotations

import inspect
import sys
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
from needed import require_triton

require_triton()

import bad_kernels  # noqa: E402
import sample_kernels  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from compiled import Pointer, compile_for  # noqa: E402
from triton.compiler.errors import CompilationError  # noqa: E402
from triton.runtime.jit import KernelInterface  # noqa: E402

import kprof.triton as kp  # noqa: E402
from kprof.errors import RecorderError, RegionError, TargetError  # noqa: E402
from kprof.recording.launches.launch_buffer import LaunchBuffer  # noqa: E402
from kprof.recording.rank.null_recorder import NullRecorder  # noqa: E402
from kprof.region_places import place  # noqa: E402
from kprof.triton.buffer import build_name  # noqa: E402
from kprof.triton.versions import check_version  # noqa: E402

LAUNCH = LaunchBuffer(1 << 40, 5, 100, 1, 64, 32, 32)

SENTENCES = {
    "too_many_numbers": "stop() of region 'wait' takes one number for each of its payload fields "
    "(peer, slot) "
    "and was given 3 by position",
    "a_field_is_missing": "stop() of region 'wait' takes one number for each of its payload "
    "fields (peer, slot) "
    "and was given peer",
    "a_field_of_another_name": "(peer, slot) and was given 1 by position, slott",
    "a_constant_that_does_not_fit": "256 does not fit field 'peer' of region 'wait', which holds "
    "0 to 254; "
    "give the field more bits",
    "a_tensor_as_payload": "field 'peer' of region 'wait' takes one integer per program, not a "
    "tensor",
    "a_float_as_payload": "field 'peer' of region 'wait' takes one integer per program, not fp32",
    "a_mark_as_span": "stop() records a span, and region 'done' is a mark",
    "a_span_as_value": "value() records a value, and region 'wait' is a span",
    "a_region_of_other_regions": "region 'foreign' is not among the regions that "
    "kprof.triton.buffer() was given",
    "a_number_as_region": "mark() takes a region that Regions.define() returned or that a region "
    "file declares, "
    "not int",
    "no_track": "mark() takes the track that open_track() returned, not",
    "no_moment": "stop() of region 'wait' takes the moment that start() returned",
    "no_wait": "still_waiting() of region 'wait' takes the wait that waiting() returned",
    "a_wait_that_is_not_kept": "It is the wait that the next event needs: write `wait = "
    "...still_waiting(track, ...)`",
    "a_track_that_is_not_kept": "It is the track that the next event needs: write `track = "
    "...mark(track, ...)`",
    "a_track_in_a_loop": "open_track() is called in a loop, where every iteration would overwrite "
    "the track of the one before; open the track before the loop",
    "a_number_of_events_that_is_not_known": "open_track() takes at_most as a constexpr, the most "
    "events that the track will have: 0 or more, not int32",
    "fewer_events_than_none": "0 or more, not -1",
    "a_track_of_another_partition": "mark() was given a track of another partition, which writes "
    "to it as well; "
    "open a track in every partition",
}


def error_of(name: str, prof: Any, target: str = "sm_90", **options: Any) -> str:
    with pytest.raises(CompilationError) as caught:
        compile_for(target, getattr(bad_kernels, name), Pointer(), prof, **options)
    error: BaseException | None = caught.value
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return "\n".join(texts)


@pytest.mark.parametrize("name", SENTENCES)
def test_a_kernel_that_is_wrong_says_how(name: str) -> None:
    assert SENTENCES[name] in error_of(name, kp.pack(LAUNCH, bad_kernels.regions))


def test_the_warps_of_a_launch_must_be_those_that_were_recorded() -> None:
    message = error_of("fine", kp.pack(LAUNCH, bad_kernels.regions, num_warps=8), num_warps=4)
    assert (
        "the kernel is compiled with num_warps=4, and kprof.triton.buffer() was given num_warps=8"
        in message
    )


def test_an_amd_gpu_of_another_family_is_refused() -> None:
    message = error_of("fine", kp.pack(LAUNCH, bad_kernels.regions), "gfx1100")
    assert "on gfx9 of AMD (MI200, MI300, MI350); this kernel is compiled for gfx1100" in message


@pytest.mark.parametrize("prof", [LAUNCH, Pointer(), 17])
def test_what_is_no_buffer_is_refused(prof: Any) -> None:
    assert "open_track() takes what kprof.triton.buffer() returned, or None, not" in error_of(
        "fine", prof
    )


def test_wrong_regions_are_found_in_kernels_that_do_not_record() -> None:
    """Else a kernel would break on the day that it is recorded."""
    assert SENTENCES["a_mark_as_span"] in error_of("a_mark_as_span", None)


def test_a_grid_that_autotuning_decides_is_none() -> None:
    with pytest.raises(RecorderError, match="pass grid=None where autotuning decides it"):
        kp.buffer("copy", lambda meta: (1,), bad_kernels.regions, recorder=NullRecorder())  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["3.2.0", "4.0.1", "3.10.0"])
def test_a_version_that_was_not_tested_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        TargetError, match=rf"tested with Triton 3\.6, .*, and this is Triton {version}"
    ):
        check_version(version)
    monkeypatch.setenv("KPROF_TRITON_ANY_VERSION", "1")
    check_version(version)


@pytest.mark.parametrize("version", ["3.6.0", "3.6.0+git1234", "3.9.1"])
def test_versions_that_were_tested_pass(version: str) -> None:
    check_version(version)


def test_regions_that_do_not_fit_are_refused_where_they_are_declared() -> None:
    regions = kp.Regions()
    with pytest.raises(RegionError, match=r"region 'a': payload fields take 40 bits of 32"):
        regions.define("a", peer=16, slot=24)
    with pytest.raises(
        RegionError, match="region 'b': unknown category 'copy'; use one of compute, send"
    ):
        regions.define("b", category="copy")
    regions.define("c")
    with pytest.raises(RegionError, match="region name 'c' is used twice"):
        regions.define("c")


def test_a_symbol_that_the_region_file_does_not_declare(tmp_path: Any) -> None:
    path = tmp_path / "regions.h"
    path.write_text('REGION(R_COPY, "copy", compute)\n')
    regions = kp.Regions(path)
    assert regions.R_COPY.value.name == "copy"
    with pytest.raises(
        AttributeError, match="unknown region R_WAIT; the region file declares R_COPY"
    ):
        _ = regions.R_WAIT


def test_a_place_that_the_kernel_does_not_have() -> None:
    with pytest.raises(
        RecorderError,
        match=r"fine has no statement at 'tl.dot' for 'dot'; its lines are \d+ to \d+",
    ):
        kp.instrument(bad_kernels.fine, at={"dot": "tl.dot"})


def test_what_is_no_kernel_cannot_be_instrumented() -> None:
    with pytest.raises(
        RecorderError, match=r"instrument\(\) takes a kernel made by @triton.jit or @gluon.jit"
    ):
        kp.instrument(3, at={"dot": "tl.dot"})


def test_a_function_around_a_kernel_cannot_be_instrumented() -> None:
    @wraps(bad_kernels.fine.fn)
    def launches(*args: object) -> None:
        bad_kernels.fine[(1,)](*args)

    with pytest.raises(RecorderError, match="fine is a Python function; if it launches one, give"):
        kp.instrument(launches, at={"all": ...})


class Entry(KernelInterface):  # type: ignore[misc]
    """A decorator that keeps what it has compiled, and the kernels further inside as well."""

    def __init__(self, kernel: Any) -> None:
        self.entered = kernel
        self.jit_function = kernel
        while not inspect.isfunction(self.jit_function.fn):
            self.jit_function = self.jit_function.fn
        self.kernel_cache = {"a key": "code of the original"}
        self.arg_names = kernel.arg_names


class Mark:
    """One that does not launch, as torch.library.wrap_triton."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel


def test_decorators_of_others_are_put_around_the_copy() -> None:
    """heuristics over an entry over a tuner; what the entry has compiled is the original's."""
    tuned = bad_kernels.triton.autotune([bad_kernels.triton.Config({})], key=["x"])(
        sample_kernels.returns_early
    )
    tuned.cache["known"] = tuned.configs[0]
    entry = Entry(tuned)
    stack = Mark(bad_kernels.triton.heuristics({"n": lambda _: 3})(entry))
    spans = kp.instrument(stack, at={"all": ...})
    outer = spans.kernel
    assert type(outer).__name__ == "Heuristics"
    assert outer.fn is not entry
    assert outer.fn.kernel_cache == {}
    assert entry.kernel_cache
    assert outer.fn.entered.cache == tuned.cache
    copied = outer.fn.entered.fn
    assert outer.fn.jit_function is copied
    assert outer.fn.entered.base_fn is copied.fn
    assert copied.arg_names == ["x", "n", "kprof_buffer"]
    assert sample_kernels.returns_early.arg_names == ["x", "n"]


def test_regions_stand_where_they_are_defined_or_where_their_statement_is() -> None:
    """The build of the code is the same wherever that is."""
    at = {"dot": "tl.dot", "all": ...}
    spans = kp.instrument(sample_kernels.plain_matmul, at=at)
    first = inspect.getsourcelines(sample_kernels.plain_matmul.fn)[1]
    lines = inspect.getsource(sample_kernels).splitlines()
    dot = next(i for i, line in enumerate(lines, start=1) if "= tl.dot(" in line)
    file = sample_kernels.__file__
    assert [region.place for region in spans.regions.table.regions] == [
        place(file, dot),
        place(file, first),
    ]
    own, other = kp.Regions(), kp.Regions()
    one = own.define("one")
    two = other.define("one")
    assert own.table.regions[0].place.rpartition(":")[0] == place(__file__, 0)[:-2]
    assert own.table != other.table
    assert one.value == two.value
    assert build_name(own.table, 4).value == build_name(other.table, 4).value


def matmul_with_spans(num_stages: int, capsys: pytest.CaptureFixture[str]) -> str:
    """What kprof says of the compiled code, looked at twice as by two launches."""
    spans = kp.instrument(sample_kernels.plain_matmul, at={"dot": "tl.dot", "all": ...})
    code = compile_for(
        "sm_90", spans.kernel, *[Pointer("fp16")] * 3, 4096, 4096,
        M=128, N=128, K=64, num_stages=num_stages, kprof_buffer=kp.pack(LAUNCH, spans.regions),
    )  # fmt: skip
    for _ in range(2):
        spans._looked.look_at(code.compiled)
    return capsys.readouterr().err


def test_a_span_that_the_compiler_has_emptied_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With three stages, loads and products of the loop stand elsewhere. The span around all does not."""
    said = matmul_with_spans(3, capsys)
    assert said == (
        "kprof: span 'dot' of plain_matmul measures nothing: the compiler has moved what stands in "
        "it, as it does in a pipelined loop; put it around the whole loop, or launch with "
        "num_stages=1\n"
    )
    assert not matmul_with_spans(1, capsys)


def test_hooks_of_a_kernel_are_called_before_its_copy_runs() -> None:
    """One that clears what the kernel adds to, say; whenever it was added."""
    kernel = triton.jit(sample_kernels.returns_early.fn)
    kernel.add_pre_run_hook(len)
    spans = kp.instrument(kernel, at={"all": ...})
    kernel.add_pre_run_hook(max)
    assert spans.kernel.pre_run_hooks == [len, max]


def test_kernels_of_functions_are_refused() -> None:
    size = bad_kernels.tl.constexpr(3)

    def kernel(x):
        bad_kernels.tl.store(x, size)

    with pytest.raises(RecorderError, match="uses variables of the function that it is defined in"):
        kp.instrument(bad_kernels.triton.jit(kernel), at={"store": "tl.store"})


def test_a_buffer_is_of_the_gpu_that_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever the process has used before."""
    asked: list[str] = []

    def recorder(device: str) -> NullRecorder:
        asked.append(device)
        return NullRecorder()

    # kprof.triton has a function of that name.
    buffers = sys.modules["kprof.triton.buffer"]
    monkeypatch.setattr(buffers, "process_recorder", recorder)
    monkeypatch.setattr(buffers, "_has_gpu", lambda: True)
    for number in (0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda number=number: number)
        assert kp.buffer("copy", (3,), bad_kernels.regions) is None
    assert asked == ["cuda:0", "cuda:1"]


def test_a_whole_kernel_ends_its_span_before_it_returns() -> None:
    spans = kp.instrument(sample_kernels.returns_early, at={"all": ...})
    prof = kp.pack(LAUNCH, spans.regions)
    code = compile_for("gfx942", spans.kernel, Pointer(), 2, kprof_buffer=prof)
    # For the header, the beginning, and either end, which may be one.
    assert 1 + 1 + 1 <= code.count("s_memrealtime") <= 1 + 1 + 2
    # A record behind either end. No event needs a second chunk, whose header has six stores.
    assert 1 <= code.count("store_dwordx4") <= 2
    assert code.count("store_dwordx2 .* sc0 sc1") == 6
    last_clock = max(i for i, line in enumerate(code.instructions) if "s_memrealtime" in line)
    own_store = next(
        i for i, line in enumerate(code.instructions) if line.startswith("global_store_dword v")
    )
    assert own_store < last_clock


def test_instrumented_and_off_is_the_original() -> None:
    """Under `kprof record` the spans are there, otherwise nothing is."""
    spans = kp.instrument(sample_kernels.plain_matmul, at={"dot": "tl.dot"})
    arguments = (*[Pointer("fp16")] * 3, 4096, 4096)
    tile = {"M": 128, "N": 128, "K": 64}
    original = compile_for("gfx942", sample_kernels.plain_matmul, *arguments, **tile)
    off = compile_for("gfx942", spans.kernel, *arguments, **tile, kprof_buffer=None)
    recorded = compile_for(
        "gfx942", spans.kernel, *arguments, **tile, kprof_buffer=kp.pack(LAUNCH, spans.regions)
    )
    assert off.instructions == original.instructions
    assert recorded.count("s_memrealtime") > 0


@pytest.mark.parametrize("stages", [1, 5])
def test_a_ring_of_the_matmul_is_neither_too_short_nor_too_long(stages: int) -> None:
    """With one place, each role would wait for the other for ever."""
    from instrumented_kernels.triton_matmul.call import Matmul

    x = SimpleNamespace(shape=(4096, 4096))
    with pytest.raises(RecorderError, match=f"a ring has 2 to 4 places, not {stages}"):
        Matmul(x, x, stages=stages, in_loop=False)  # type: ignore[arg-type]


def test_a_matmul_that_tiles_do_not_divide() -> None:
    from instrumented_kernels.triton_matmul.call import Matmul

    x = SimpleNamespace(shape=(4100, 4096))
    with pytest.raises(RecorderError, match="4100 x 4096 by 4096 x 4096 is not divided by tiles"):
        Matmul(x, x, stages=4, in_loop=False)  # type: ignore[arg-type]
