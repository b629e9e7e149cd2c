"""The plan: compiled kernels, symmetric heap and workspace of one group of ranks, and how a call is run.

Created once per group (collective), used for any number of calls, freed by `close`. Every input is checked before a
kernel is launched. All sizes and offsets come from the compiled kernel (layout.h); nothing is declared twice.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from instrumented_kernels.all_to_all.problem import Dispatched, Problem
from instrumented_kernels.kernel_library import (
    MAX_RANKS,
    KernelBuilds,
    KernelLibrary,
    build_options,
    current_stream,
)
from instrumented_kernels.team_memory import TeamMemory
from kprof.devices import gpu
from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target, record_of
from kprof.recording.recorder import NullRecorder, Recorder
from kprof.regions import RegionTable

if TYPE_CHECKING:
    import torch

    from kprof.groups import Group

DEFAULT_TIMEOUT_S: Final = 5.0
DEFAULT_WARPS_PER_BLOCK: Final = 8  # on GPUs; the CPU target takes one
DEFAULT_BLOCKS_PER_PROCESSOR: Final = 2
_HERE: Final = Path(__file__).parent
_NOT_RECORDING: Final = NullRecorder()
_SHAPE_FIELDS: Final = ("num_experts", "top_k", "hidden", "max_tokens", "world_size")


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


class Plan:
    """Everything that calls of one shape on one group of ranks need. Creation is collective.

    `device` is "cpu" or the current torch device. `grid` blocks of `warps_per_block` warps run each phase; by default
    two blocks of one warp per rank on the CPU, and on a GPU two blocks of eight warps per SM (CU), or as many as can be
    resident at once. `heap_bytes` may reserve more than the shape needs. On the CPU target `options` may set the warp
    width and `schedule_seed` the interleaving. Raises ValueError, or TargetError / BuildError of kprof.
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
        heap_bytes: int | None = None,
        options: BuildOptions | None = None,
    ) -> None:
        problem.check(group.world_size)
        self.problem = problem
        self.group = group
        self.device = device
        self.options = options or build_options(device)
        self.regions = RegionTable.from_header(_HERE / "regions.h")
        self.variant = variant
        self._builds = KernelBuilds(_load, self.options)
        self._library = self._builds.plain
        self._variant = self._variant_idx(variant)
        self._schedule_seed = schedule_seed
        warps = warps_per_block or (
            DEFAULT_WARPS_PER_BLOCK if record_of(self.options.target).is_gpu else 1
        )
        self._grid = self._library.grid(
            self._variant,
            grid or self._default_grid(warps),
            warps,
        )
        self._shape = _Shape(
            problem.num_experts, problem.top_k, problem.hidden, problem.max_tokens, group.world_size
        )
        self._check_same_on_all_ranks()
        functions, shape = self._library.functions, ctypes.byref(self._shape)
        self._memory = TeamMemory(
            group,
            device,
            heap_bytes=self._heap_bytes(heap_bytes),
            workspace_bytes=functions.all_to_all_workspace_bytes(shape),
        )
        self._epoch = 0
        self._call = _Call(
            shape=self._shape,
            rank=group.rank,
            timeout_ticks=int(timeout_s * self._library.ticks_per_second),
            heaps=self._memory.heaps,
        )
        self._launches = [
            self._builds.prepare(self._variant, phase, self._call, self._grid)
            for phase in range(len(self._library.phases(self._variant)))
        ]

    @property
    def threads_per_block(self) -> int:
        """Warps per block times the target's warp width."""
        return self._grid.threads_per_block

    @property
    def in_words(self) -> str:
        """How a call is run, for people."""
        return f"{self.grid} blocks of {self.threads_per_block} threads"

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

        self.problem.check_tensors(x, indices, weights, out, self.device)
        if not is_async:
            self.problem.check_indices(indices)
        result = torch.empty_like(x) if out is None else out
        self._fill_call(x, indices, weights, result)
        for phase in range(len(self._launches)):
            self._launch(phase, recorder or _NOT_RECORDING)
        self._epoch += 1
        if not is_async:
            self.wait()
        return result

    def prepare_recording(self) -> None:
        """Load what records calls, where a recorder comes after the plan. The first recorded call does it otherwise.

        It compiles then, for longer than ranks that do not record wait for this one. Raises ValueError when the grid
        is too large for the instrumented build.
        """
        for launch in self._launches:
            _ = launch.instrumented

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
        counts_at += self._epoch % 2 * num_local * 4
        if self.variant == "pipelined" and self._epoch:
            self._gather_expert_rows()
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

    def abandon(self) -> None:
        """Free the memory of a group that was destroyed, without a meeting of its ranks."""
        gpu.synchronize(self.device)
        self._memory.abandon()

    def _gather_expert_rows(self) -> None:
        """Bring the rows that this variant leaves where they arrived into the order of the experts."""
        error = self._library.functions.all_to_all_gather_expert_rows(
            ctypes.byref(self._call),
            self._grid.num_blocks,
            self._grid.threads_per_block,
            current_stream(self.device),
        )
        assert not error, self._library.functions.kernel_error_text(error)

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap."""
        self._memory.close()

    def _variant_idx(self, variant: str) -> int:
        if variant not in self._library.variants:
            choices = ", ".join(("torch", *self._library.variants))
            raise ValueError(f"variant {variant!r} is not known; choose one of {choices}")
        return self._library.variant_idx(variant)

    def _heap_bytes(self, wanted: int | None) -> int:
        needed = int(self._library.functions.all_to_all_heap_bytes(ctypes.byref(self._shape)))
        if wanted is not None and wanted < needed:
            raise ValueError(
                f"a heap of {wanted} bytes is too small for {self.problem} on {self.group.world_size} ranks; "
                f"give at least {needed}"
            )
        return needed if wanted is None else wanted

    def _default_grid(self, warps_per_block: int) -> int:
        if self.options.target is Target.CPU:
            return 2 * self.group.world_size
        threads = warps_per_block * self._library.warp_width
        limit = self._builds.max_resident_blocks(self._variant, threads)
        # None fit: the check of the grid says so.
        return max(1, min(DEFAULT_BLOCKS_PER_PROCESSOR * self._library.num_processors, limit))

    def _launch(self, phase: int, recorder: Recorder | NullRecorder) -> None:
        self._builds.launch(
            self._launches[phase],
            regions=self.regions,
            recorder=recorder,
            stream=current_stream(self.device),
            schedule_seed=self._schedule_seed
            and self._schedule_seed + self._call.epoch * 131 + phase,
        )

    def _fill_call(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        """What differs from call to call; the kernel gets a copy."""
        call = self._call
        call.workspace = self._memory.workspace_address
        call.num_tokens = x.shape[0]
        call.epoch = self._epoch + 1
        call.x, call.indices = x.data_ptr(), indices.data_ptr()
        call.weights, call.out = weights.data_ptr(), out.data_ptr()

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
    library.functions.all_to_all_gather_expert_rows.argtypes = [
        ctypes.POINTER(_Call),
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    return library
