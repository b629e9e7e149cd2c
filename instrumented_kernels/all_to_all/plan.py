"""The plan: compiled kernels, symmetric heap and workspace of one group of ranks, and how a call is run.

Created once per group (collective), used for any number of calls, freed by `close`. Every input is checked before a
kernel is launched. All sizes and offsets come from the compiled kernel (layout.h); nothing is declared twice.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kprof.arena import Memory, allocate
from kprof.build import BuildOptions, load_library
from kprof.recording import NullRecorder, Recorder
from kprof.regions import RegionTable
from kprof.symmetric import SymmetricHeap
from kprof.targets import Target, target_of_device

if TYPE_CHECKING:
    import torch

    from kprof.groups import Group

MAX_RANKS: Final = 64
DEFAULT_TIMEOUT_S: Final = 5.0
DEFAULT_WARPS_PER_BLOCK: Final = {Target.CPU: 1, Target.CUDA: 8, Target.HIP: 8}
_HERE: Final = Path(__file__).parent
_SHAPE_FIELDS: Final = ("num_experts", "top_k", "hidden", "max_tokens", "world_size")


class PeerTimeoutError(RuntimeError):
    """A rank waited for a peer longer than the limit; the message says who, for whom and for what."""


@dataclass(frozen=True)
class Problem:
    """What is to be computed: E experts, K per token, rows of D fp16 elements, at most M tokens per rank."""

    num_experts: int
    top_k: int
    hidden: int
    max_tokens: int

    def check(self, world_size: int) -> None:
        """Raise ValueError with one sentence when the problem cannot be dealt to `world_size` ranks."""
        if min(self.num_experts, self.top_k, self.hidden, self.max_tokens) < 1:
            raise ValueError(f"the shape E,K,D,M must be positive, got {self}")
        if not 1 <= world_size <= MAX_RANKS:
            raise ValueError(f"{world_size} ranks: give 1 to {MAX_RANKS}")
        if self.num_experts % world_size:
            raise ValueError(
                f"{self.num_experts} experts cannot be dealt evenly to {world_size} ranks; "
                "make E a multiple of the number of ranks"
            )
        if self.top_k > self.num_experts:
            raise ValueError(
                f"K = {self.top_k} distinct experts of E = {self.num_experts} do not exist"
            )


class _Shape(ctypes.Structure):
    """all_to_all::Shape of layout.h."""

    _fields_ = [(name, ctypes.c_uint32) for name in _SHAPE_FIELDS]


class _Call(ctypes.Structure):
    """all_to_all::CallArguments of kernel.hip; its size is compared with the compiled one."""

    _fields_ = [
        ("shape", _Shape),
        ("rank", ctypes.c_uint32),
        ("num_tokens", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("timeout_ticks", ctypes.c_uint64),
        ("x", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("heaps", ctypes.c_void_p * MAX_RANKS),
    ]


class _Timeout(ctypes.Structure):
    """signals::Timeout of signals.h."""

    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "is_set",
            "region",
            "peer",
            "slot",
            "epoch",
            "waited_ms",
            "reserved0",
            "reserved1",
        )
    ]


@dataclass(frozen=True)
class Dispatched:
    """What dispatch delivered to one rank, grouped by local expert.

    `num_rows[e]` rows for local expert e; `rows[e][i]` fp16 [D] after the expert; `origins[e][i]` is (flat token =
    token * K + k, source rank).
    """

    num_rows: np.ndarray
    rows: list[np.ndarray]
    origins: list[np.ndarray]


class Plan:
    """Everything that calls of one shape on one group of ranks need. Creation is collective.

    `device` is "cpu" or the current torch device. `grid` blocks of `warps_per_block` warps run each phase; by default
    two blocks of one warp per rank on the CPU, and one block of eight warps per SM (CU) on a GPU. On the CPU target
    `options` may set the warp width and `schedule_seed` the interleaving. Raises ValueError, or TargetError /
    BuildError of kprof.
    """

    def __init__(
        self,
        group: Group,
        problem: Problem,
        *,
        variant: str = "token_flags",
        device: str = "cpu",
        grid: int | None = None,
        warps_per_block: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        schedule_seed: int = 0,
        options: BuildOptions | None = None,
    ) -> None:
        problem.check(group.world_size)
        self.problem = problem
        self.group = group
        self.device = device
        self.options = options or default_options(device)
        self.regions = RegionTable.from_header(_HERE / "regions.h")
        self._library = _load(self.options)
        self.variant = variant
        self._variant = self._find_variant(variant)
        self._schedule_seed = schedule_seed
        self._warps = warps_per_block or DEFAULT_WARPS_PER_BLOCK[self.options.target]
        self._grid = grid or self._library.all_to_all_num_processors() or 2 * group.world_size
        self._check_grid()
        self._shape = _Shape(
            problem.num_experts, problem.top_k, problem.hidden, problem.max_tokens, group.world_size
        )
        self._check_same_on_all_ranks()
        shape = ctypes.byref(self._shape)
        self._heap = SymmetricHeap(group, self._library.all_to_all_heap_bytes(shape), device)
        num_bytes = self._library.all_to_all_workspace_bytes(shape)
        self._workspace: Memory | None = allocate(num_bytes, device)
        self._timeout_s = timeout_s
        self._epoch = 0

    @property
    def threads_per_block(self) -> int:
        """Warps per block times the target's warp width."""
        return self._warps * int(self._library.all_to_all_warp_width())

    @property
    def grid(self) -> int:
        """Blocks per launch."""
        return self._grid

    def __call__(
        self,
        x: torch.Tensor,
        indices: torch.Tensor,
        weights: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        recorder: Recorder | NullRecorder | None = None,
        is_async: bool = False,
    ) -> torch.Tensor:
        """Run one call on this rank: x fp16 [n, D], indices int32 [n, K], weights fp32 [n, K] -> fp16 [n, D].

        All ranks call it the same number of times; no barrier is needed between calls. Raises ValueError / TypeError
        for bad inputs before anything is launched, PeerTimeoutError when a peer never answered. With `is_async` the
        host looks at no values and waits for nothing: the caller vouches for the indices and calls `wait()` later.
        """
        import torch

        self._check_tensors(x, indices, weights, out)
        if not is_async:
            self._check_indices(indices)
        result = torch.empty_like(x) if out is None else out
        self._epoch += 1
        call = self._make_call(x, indices, weights, result)
        for phase in range(self._library.all_to_all_num_phases(self._variant)):
            self._launch(phase, call, recorder or NullRecorder())
        if not is_async:
            self.wait()
        return result

    def wait(self) -> None:
        """Wait for all calls on this rank; raises PeerTimeoutError when a peer never answered.

        The plan is void after that: rows of the failed call may still arrive.
        """
        begin = self._workspace_offsets()[0]
        timeout = _Timeout.from_buffer_copy(
            self._open_workspace().read(begin, begin + ctypes.sizeof(_Timeout)).tobytes()
        )
        if not timeout.is_set:
            return
        self._workspace = None
        raise PeerTimeoutError(
            f"rank {self.group.rank} waited {timeout.waited_ms / 1e3:.1f} s for rank {timeout.peer}, "
            f"slot {timeout.slot}, epoch {timeout.epoch}, in {self.regions[timeout.region].name}; "
            "the results of this call are void"
        )

    def dispatched(self) -> Dispatched:
        """What the last call delivered to this rank."""
        num_local = self.problem.num_experts // self.group.world_size
        capacity = self.group.world_size * self.problem.max_tokens
        stride = -(-self.problem.hidden // 8) * 8
        _, counts_at, origins_at, rows_at = self._workspace_offsets()
        num_rows = self._view(counts_at, num_local * 4, np.uint32)
        origins = self._view(origins_at, num_local * capacity * 8, np.uint32).reshape(
            num_local, capacity, 2
        )
        rows = self._view(rows_at, num_local * capacity * stride * 2, np.float16)
        rows = rows.reshape(num_local, capacity, stride)[:, :, : self.problem.hidden]
        return Dispatched(
            num_rows.copy(),
            [rows[e, :n].copy() for e, n in enumerate(num_rows)],
            [origins[e, :n].copy() for e, n in enumerate(num_rows)],
        )

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap."""
        self.group.barrier()
        self._heap.close()
        self._workspace = None

    def _launch(self, phase: int, call: _Call, recorder: Recorder | NullRecorder) -> None:
        name = self._library.all_to_all_phase_name(self._variant, phase).decode()
        buffer = recorder.launch(
            name,
            self.regions,
            num_blocks=self._grid,
            threads_per_block=self.threads_per_block,
            tracks_per_block=self._warps,
        )
        seed = self._schedule_seed and self._schedule_seed + self._epoch * 131 + phase
        error = self._library.all_to_all_launch(
            self._variant,
            phase,
            ctypes.byref(call),
            self._grid,
            self.threads_per_block,
            buffer.packed(),
            self._stream(),
            seed,
        )
        if error:
            text = self._library.all_to_all_error_text(error).decode()
            raise RuntimeError(f"rank {self.group.rank}: {name} could not be launched: {text}")

    def _stream(self) -> int | None:
        """Torch's current stream, so that calls keep their place among the caller's other work."""
        if self.device == "cpu":
            return None
        import torch

        return int(torch.cuda.current_stream().cuda_stream)

    def _make_call(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> _Call:
        ticks = int(self._timeout_s * self._library.all_to_all_ticks_per_second())
        heaps = (ctypes.c_void_p * MAX_RANKS)(*self._heap.bases)
        return _Call(
            self._shape,
            self.group.rank,
            x.shape[0],
            self._epoch,
            ticks,
            x.data_ptr(),
            indices.data_ptr(),
            weights.data_ptr(),
            out.data_ptr(),
            self._open_workspace().address,
            heaps,
        )

    def _open_workspace(self) -> Memory:
        if self._workspace is None:
            raise RuntimeError(
                "the plan was closed, or a peer timed out in an earlier call; create a new plan"
            )
        return self._workspace

    def _workspace_offsets(self) -> list[int]:
        offsets = (ctypes.c_uint64 * 4)()
        self._library.all_to_all_workspace_offsets(ctypes.byref(self._shape), offsets)
        return list(offsets)

    def _view(self, offset: int, num_bytes: int, dtype: Any) -> np.ndarray:
        return self._open_workspace().read(offset, offset + num_bytes).view(dtype)

    def _find_variant(self, name: str) -> int:
        num_variants = self._library.all_to_all_num_variants()
        names = [self._library.all_to_all_variant_name(i).decode() for i in range(num_variants)]
        if name not in names:
            raise ValueError(f"variant {name!r} is not known; choose one of {', '.join(names)}")
        return names.index(name)

    def _check_grid(self) -> None:
        limit = int(
            self._library.all_to_all_max_resident_blocks(self._variant, self.threads_per_block)
        )
        if not 1 <= self._grid <= limit:
            raise ValueError(
                f"a grid of {self._grid} blocks of {self.threads_per_block} threads cannot be resident at once "
                f"(at most {limit}), and blocks that wait for each other must be; use a smaller grid"
            )

    def _check_same_on_all_ranks(self) -> None:
        shapes = self.group.all_gather((self.problem, self.variant, self._grid, self._warps))
        for rank, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ValueError(
                    f"rank {rank} has the plan {shape}, rank 0 has {shapes[0]}; they must be equal"
                )

    def _check_tensors(
        self,
        x: torch.Tensor,
        indices: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor | None,
    ) -> None:
        import torch

        n = x.shape[0]
        device_type = torch.device(self.device).type
        _check_tensor("x", x, torch.float16, (n, self.problem.hidden), device_type)
        _check_tensor("indices", indices, torch.int32, (n, self.problem.top_k), device_type)
        _check_tensor("weights", weights, torch.float32, (n, self.problem.top_k), device_type)
        if out is not None:
            _check_tensor("out", out, torch.float16, (n, self.problem.hidden), device_type)
        if n > self.problem.max_tokens:
            raise ValueError(
                f"x has {n} tokens, the plan holds {self.problem.max_tokens} (M) per rank"
            )

    def _check_indices(self, indices: torch.Tensor) -> None:
        if indices.numel() == 0:
            return
        if int(indices.min()) < 0 or int(indices.max()) >= self.problem.num_experts:
            raise ValueError(
                f"indices must lie in 0 .. {self.problem.num_experts - 1} (E = {self.problem.num_experts})"
            )
        in_order = indices.sort(dim=1).values
        repeated = (in_order[:, 1:] == in_order[:, :-1]).any(dim=1).nonzero()
        if len(repeated):
            raise ValueError(
                f"token {int(repeated[0])} names an expert twice; its K experts must be distinct"
            )


def _check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device_type: str,
) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.device.type != device_type:
        raise ValueError(f"{name} is on {tensor.device}, the plan runs on {device_type}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous; call .contiguous()")


def default_options(device: str) -> BuildOptions:
    """How the kernel is built for a device; on a GPU for exactly its architecture."""
    include_dirs = (_HERE.parent / "device",)
    target = target_of_device(device)
    if target is Target.CPU:
        return BuildOptions(target, include_dirs=include_dirs)
    import torch

    properties = torch.cuda.get_device_properties(device)
    arch = (
        properties.gcnArchName.split(":")[0]
        if target is Target.HIP
        else f"sm_{properties.major}{properties.minor}"
    )
    return BuildOptions(target, arch, include_dirs=include_dirs)


def _load(options: BuildOptions) -> ctypes.CDLL:
    library = load_library(_HERE / "kernel.hip", options)
    shape = ctypes.POINTER(_Shape)
    for name in ("all_to_all_heap_bytes", "all_to_all_workspace_bytes"):
        function = getattr(library, name)
        function.argtypes, function.restype = [shape], ctypes.c_uint64
    library.all_to_all_workspace_offsets.argtypes = [shape, ctypes.POINTER(ctypes.c_uint64)]
    library.all_to_all_call_bytes.restype = ctypes.c_uint64
    library.all_to_all_phase_name.restype = ctypes.c_char_p
    library.all_to_all_variant_name.restype = ctypes.c_char_p
    library.all_to_all_error_text.restype = ctypes.c_char_p
    library.all_to_all_ticks_per_second.restype = ctypes.c_uint64
    library.all_to_all_launch.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.POINTER(_Call),
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
    ]
    assert library.all_to_all_call_bytes() == ctypes.sizeof(_Call), (
        "CallArguments differ between C++ and Python"
    )
    return library
