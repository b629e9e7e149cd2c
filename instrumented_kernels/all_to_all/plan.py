"""The plan: compiled kernels, symmetric heap and workspace of one group of ranks, and how a call is run.

Created once per group (collective), used for any number of calls, freed by `close`. Every input is checked before a
kernel is launched. All sizes and offsets come from the compiled kernel (layout.h); nothing is declared twice.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from instrumented_kernels.kernel_library import (
    MAX_RANKS,
    KernelLibrary,
    build_options,
    current_stream,
)
from instrumented_kernels.team_memory import TeamMemory
from instrumented_kernels.tensors import check_tensor
from kprof.build import BuildOptions
from kprof.recording import NullRecorder, Recorder
from kprof.regions import RegionTable
from kprof.targets import Target

if TYPE_CHECKING:
    import torch

    from kprof.groups import Group

DEFAULT_TIMEOUT_S: Final = 5.0
DEFAULT_WARPS_PER_BLOCK: Final = {Target.CPU: 1, Target.CUDA: 8, Target.HIP: 8}
_HERE: Final = Path(__file__).parent
_SHAPE_FIELDS: Final = ("num_experts", "top_k", "hidden", "max_tokens", "world_size")


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
        self.options = options or build_options(device)
        self.regions = RegionTable.from_header(_HERE / "regions.h")
        self.variant = variant
        self._library = _load(self.options)
        self._variant = self._library.variant_idx(variant)
        self._schedule_seed = schedule_seed
        self._grid = self._library.grid(
            self._variant,
            grid or self._library.num_processors or 2 * group.world_size,
            warps_per_block or DEFAULT_WARPS_PER_BLOCK[self.options.target],
        )
        self._shape = _Shape(
            problem.num_experts, problem.top_k, problem.hidden, problem.max_tokens, group.world_size
        )
        self._check_same_on_all_ranks()
        functions, shape = self._library.functions, ctypes.byref(self._shape)
        self._memory = TeamMemory(
            group,
            device,
            heap_bytes=functions.all_to_all_heap_bytes(shape),
            workspace_bytes=functions.all_to_all_workspace_bytes(shape),
        )
        self._timeout_s = timeout_s
        self._epoch = 0

    @property
    def threads_per_block(self) -> int:
        """Warps per block times the target's warp width."""
        return self._grid.threads_per_block

    @property
    def grid(self) -> int:
        """Blocks per launch."""
        return self._grid.num_blocks

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
        for phase in range(len(self._library.phases(self._variant))):
            self._launch(phase, call, recorder or NullRecorder())
        if not is_async:
            self.wait()
        return result

    def wait(self) -> None:
        """Wait for all calls on this rank; raises PeerTimeoutError when a peer never answered.

        The plan is void after that: rows of the failed call may still arrive.
        """
        self._memory.raise_if_timed_out(self.regions)

    def dispatched(self) -> Dispatched:
        """What the last call delivered to this rank."""
        num_local = self.problem.num_experts // self.group.world_size
        capacity = self.group.world_size * self.problem.max_tokens
        stride = -(-self.problem.hidden // 8) * 8
        counts_at, origins_at, rows_at = self._workspace_offsets()
        num_rows = self._memory.read(counts_at, num_local * 4, np.uint32)
        origins = self._memory.read(origins_at, num_local * capacity * 8, np.uint32).reshape(
            num_local, capacity, 2
        )
        rows = self._memory.read(rows_at, num_local * capacity * stride * 2, np.float16)
        rows = rows.reshape(num_local, capacity, stride)[:, :, : self.problem.hidden]
        return Dispatched(
            num_rows.copy(),
            [rows[e, :n].copy() for e, n in enumerate(num_rows)],
            [origins[e, :n].copy() for e, n in enumerate(num_rows)],
        )

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap."""
        self._memory.close()

    def _launch(self, phase: int, call: _Call, recorder: Recorder | NullRecorder) -> None:
        self._library.launch(
            self._variant,
            phase,
            call,
            self._grid,
            regions=self.regions,
            recorder=recorder,
            stream=current_stream(self.device),
            schedule_seed=self._schedule_seed and self._schedule_seed + self._epoch * 131 + phase,
        )

    def _make_call(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> _Call:
        return _Call(
            self._shape,
            self.group.rank,
            x.shape[0],
            self._epoch,
            int(self._timeout_s * self._library.ticks_per_second),
            x.data_ptr(),
            indices.data_ptr(),
            weights.data_ptr(),
            out.data_ptr(),
            self._memory.workspace_address,
            self._memory.heaps,
        )

    def _workspace_offsets(self) -> list[int]:
        offsets = (ctypes.c_uint64 * 3)()
        self._library.functions.all_to_all_workspace_offsets(ctypes.byref(self._shape), offsets)
        return list(offsets)

    def _check_same_on_all_ranks(self) -> None:
        shapes = self.group.all_gather((self.problem, self.variant, self._grid))
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
        check_tensor("x", x, torch.float16, (n, self.problem.hidden), device_type)
        check_tensor("indices", indices, torch.int32, (n, self.problem.top_k), device_type)
        check_tensor("weights", weights, torch.float32, (n, self.problem.top_k), device_type)
        if out is not None:
            check_tensor("out", out, torch.float16, (n, self.problem.hidden), device_type)
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


def _load(options: BuildOptions) -> KernelLibrary:
    library = KernelLibrary(_HERE / "kernel.hip", options, _Call)
    shape = ctypes.POINTER(_Shape)
    for name in ("all_to_all_heap_bytes", "all_to_all_workspace_bytes"):
        function = getattr(library.functions, name)
        function.argtypes, function.restype = [shape], ctypes.c_uint64
    library.functions.all_to_all_workspace_offsets.argtypes = [
        shape,
        ctypes.POINTER(ctypes.c_uint64),
    ]
    return library
