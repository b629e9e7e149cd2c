"""The plan of the all-to-all: one problem on one group of ranks, and how a call is run.

Created once per group (collective), used for any number of calls, freed by `close`. Tensors are
checked before a kernel is launched. All sizes and offsets come from the compiled kernel (layout.h).
"""

from __future__ import annotations

import ctypes
from dataclasses import astuple
from pathlib import Path
from typing import Final

from instrumented_kernels.all_to_all.problem import Problem
from instrumented_kernels.call_ledger import CallLedger
from instrumented_kernels.kernel_library import Grid, KernelSource, Launch, LaunchSequence
from instrumented_kernels.plan import DEFAULT_TIMEOUT_S, NOT_RECORDING, KernelPlan
from kprof.devices import gpu
from kprof.devices.build import BuildOptions
from kprof.devices.groups import Group
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

DEFAULT_WARPS_PER_BLOCK: Final = 8  # on GPUs; the CPU target takes one
DEFAULT_BLOCKS_PER_PROCESSOR: Final = 2


class Plan(KernelPlan):
    """The resources for calls of one shape on one group of ranks. Creation is collective.

    `device` is "cpu" or a torch device. `grid` blocks of `warps_per_block` warps run each phase; by
    default two blocks of one warp per rank on the CPU, and on a GPU two blocks of eight warps per
    SM (CU), or as many as can be resident at once. On the CPU target `options` may set the warp
    width and `schedule_seed` the interleaving. Raises ValueError, or TargetError / BuildError of
    kprof.
    """

    source = KernelSource(Path(__file__).parent)

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
        ledger: CallLedger | None = None,
    ) -> None:
        problem.check(group.world_size)
        super().__init__(group, device, timeout_s, schedule_seed, options, ledger)
        self.problem, self.variant = problem, variant
        variants = [name for name in self._library.variants if not name.startswith("/")]
        if variant not in variants:
            choices = ", ".join(("torch", *variants))
            raise ValueError(f"variant {variant!r} is not known; choose one of {choices}")
        self._variant_idx = variants.index(variant)
        # The number of calls that the host has counted: all calls until the first one is captured
        # in a graph.
        self._epoch = 0
        self._is_counted = False
        warps = warps_per_block or (1 if self.is_on_cpu else DEFAULT_WARPS_PER_BLOCK)
        with self.on_device():
            self._grid = self._library.grid(
                self._variant_idx, grid or self._default_grid(warps), warps
            )
            self._make_call()

    def _make_call(self) -> None:
        shape = self.source.shape(*astuple(self.problem), self.group.world_size)
        self._allocate(shape, (self.problem, self.variant, self._grid))
        self._call = self._arguments()
        self._launches = self._sequence_of(self.variant, self._grid)
        self._count = self._sequence_of("/count_call", self._library.independent_grid(1, 1))
        # Loads the kernel that counts calls: none should be loaded while a graph is captured.
        self._library.max_resident_blocks(self._count.launches[0].variant_idx, 1)
        text = f"all_to_all of {self.problem} ({self.variant}, {self.in_words})"
        self._fingerprint = self._ledger.fingerprint(text)

    def _sequence_of(self, variant: str, grid: Grid) -> LaunchSequence:
        variant_idx = self._library.variants.index(variant)
        phases = range(len(self._library.phases[variant_idx]))
        return self._sequence([Launch(variant_idx, idx, self._call, grid) for idx in phases])

    @property
    def threads_per_block(self) -> int:
        """Warps per block times the target's warp width."""
        return self._grid.threads_per_block

    @property
    def in_words(self) -> str:
        """How a call runs, in words."""
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
        recorder: AnyRecorder | None = None,
        is_async: bool = False,
    ) -> torch.Tensor:
        """Run one call on this rank: x fp16 [n, D], indices int32 [n, K], weights fp32 [n, K] ->
        fp16 [n, D].

        All ranks call it the same number of times; no barrier is needed between calls. Raises
        ValueError / TypeError for bad inputs, DifferentCallsError when a peer has made another
        call, PeerTimeoutError when a peer never came. With `is_async` nothing is waited for, and
        what goes wrong is raised by the next call, by `wait` or by `close`; the result for a token
        that names no expert or one twice is void then, the others are right. A call in a CUDA graph
        must be given `is_async`, else RuntimeError. All ranks capture their first graph between the
        same two calls.
        """
        with self._ledger.preparing:
            self._check_call(x, indices, weights, out, is_async)
            result = torch.empty_like(x) if out is None else out
        self._begin_call(self._fingerprint)
        self._fill_call(x, indices, weights, result)
        self._launch_call(recorder or NOT_RECORDING)
        self._end_call()
        if not is_async:
            self.wait()
        return result

    def _check_call(
        self,
        x: torch.Tensor,
        indices: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor | None,
        is_async: bool,
    ) -> None:
        if self.device != "cpu" and gpu.is_capturing():
            if not is_async:
                raise RuntimeError(
                    "a call of all_to_all in a CUDA graph cannot wait for its end; pass "
                    "is_async=True, and call wait() where the results of a replay are used"
                )
            # From here on the device counts calls, because graphs can be replayed at any time.
            self._is_counted = True
        self.problem.check_tensors(x, indices, weights, out, self.device)
        # The kernel checks values on a GPU, because the host would have to wait for them.
        if not is_async and self.device == "cpu":
            self.problem.check_indices(indices)

    def _launch_call(self, recorder: AnyRecorder) -> None:
        """Launch the part that a graph repeats."""
        self._run(self._launches, recorder)
        if self._is_counted:
            self._launch(self._count, NOT_RECORDING, self._current_stream())
        else:
            self._epoch += 1

    def prepare_recording(self) -> None:
        """Load the instrumented build, if the recorder was created after the plan. Otherwise the
        first recorded call does it.

        That call compiles for longer than ranks that do not record wait for this one. Raises
        ValueError if the grid is too large for the instrumented build.
        """
        _ = self._launches.instrumented

    def _refusal(self, refused: int) -> ValueError:
        flat_token, expert = (refused >> 32) - 1, ctypes.c_int32(refused & 0xFFFF_FFFF).value
        return self.problem.index_error(flat_token // self.problem.top_k, expert)

    def _default_grid(self, warps_per_block: int) -> int:
        if self.is_on_cpu:
            return 2 * self.group.world_size
        threads = warps_per_block * self._library.warp_width
        limit = self._builds.max_resident_blocks(self._variant_idx, threads)
        # None fit. The check of the grid reports it.
        return max(1, min(DEFAULT_BLOCKS_PER_PROCESSOR * self._library.num_processors, limit))

    def _fill_call(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Fill in what differs from call to call. The kernel gets a copy."""
        call = self._call
        call.num_tokens = x.shape[0]
        call.first_epoch, call.is_counted = self._epoch + 1, self._is_counted
        call.x, call.indices = x.data_ptr(), indices.data_ptr()
        call.weights, call.out = weights.data_ptr(), out.data_ptr()
