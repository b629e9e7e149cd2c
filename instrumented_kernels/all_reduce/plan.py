"""The plan of the all-reduce: how a tensor becomes launches.

Created once per group (collective), used for any number of calls, freed by `close`. Calls of a new
size are prepared once; later calls only fill in two addresses.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from instrumented_kernels.all_reduce.tuning import tuning_for
from instrumented_kernels.call_ledger import CallLedger
from instrumented_kernels.kernel_library import Grid, KernelSource, Launch, LaunchSequence
from instrumented_kernels.layouts import Layout
from instrumented_kernels.plan import DEFAULT_TIMEOUT_S, NOT_RECORDING, KernelPlan
from instrumented_kernels.tensors import check_tensor
from kprof.devices.build import BuildOptions
from kprof.devices.groups import Group
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

_SOURCE: Final = KernelSource(Path(__file__).parent, tracks_per_block=1)
_DECLARED: Final = _SOURCE.header.constants
MAX_BLOCKS: Final = _DECLARED["kMaxBlocks"]
CPU_BLOCKS: Final = 2
# The element types of kernel.hip, by the name of the torch dtype.
ELEMENT_TYPES: Final = {"torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32"}


@dataclass(frozen=True)
class HeapSizes:
    """Bytes of the symmetric heap for one parity: for packets and for bulk.

    Larger tensors take several launches.
    """

    packet_bytes: int
    bulk_bytes: int


_CPU_HEAP_SIZES: Final = HeapSizes(1 << 20, 1 << 20)
_GPU_HEAP_SIZES: Final = HeapSizes(32 << 20, 32 << 20)


class _Part(NamedTuple):
    """The arguments of one launch of a call, and the start of its part of the tensor."""

    arguments: Layout
    begin_byte: int


class PreparedCall(NamedTuple):
    """Everything for calls on tensors of one kind, except the addresses."""

    sequence: LaunchSequence
    parts: list[_Part]
    fingerprint: int


class Plan(KernelPlan):
    """The resources for all-reduces on one group of ranks. Creation is collective.

    `device` is "cpu" or a torch device. `warps_per_block` is what was tuned unless given. On the
    CPU target `options` may set the warp width and `schedule_seed` the interleaving. Raises
    ValueError, or TargetError / BuildError of kprof.
    """

    source = _SOURCE
    _prepared: dict[tuple[Any, ...], PreparedCall]

    def __init__(
        self,
        group: Group,
        *,
        device: str = "cpu",
        warps_per_block: int | None = None,
        heap_sizes: HeapSizes | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        schedule_seed: int = 0,
        options: BuildOptions | None = None,
        ledger: CallLedger | None = None,
    ) -> None:
        super().__init__(group, device, timeout_s, schedule_seed, options, ledger)
        sizes = heap_sizes or (_CPU_HEAP_SIZES if self.is_on_cpu else _GPU_HEAP_SIZES)
        functions = self._library.functions
        functions.all_reduce_capacity.argtypes = [ctypes.POINTER(self.source.shape), ctypes.c_int]
        functions.all_reduce_capacity.restype = ctypes.c_uint64
        self._warps = warps_per_block
        with self.on_device():
            self._allocate(
                self.source.shape(group.world_size, sizes.packet_bytes, sizes.bulk_bytes),
                (sizes, warps_per_block),
            )

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants that a call may name, in the order of the ladder."""
        return tuple(dict.fromkeys(name.split("/")[0] for name in self._library.variants))

    def __call__(
        self,
        tensor: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        variant: str = "auto",
        grid: int | None = None,
        recorder: AnyRecorder | None = None,
    ) -> torch.Tensor:
        """The sum of `tensor` over all ranks, bitwise the same on each: added in fp32 in rank
        order, rounded once.

        fp16, bf16 or fp32, contiguous, any length; `out` (by default new memory) may be `tensor`
        itself. All ranks make the same calls in the same order, one after the other; no barrier is
        needed between them. "auto" takes the variant that was measured to be fastest for the size,
        `grid` the number of blocks. On a GPU this only launches (it may be captured in a CUDA
        graph): what goes wrong is raised by the next call, by `wait` or by `close`. On the CPU the
        call raises PeerTimeoutError itself when a peer never came. Raises DifferentCallsError when
        a peer has made another call, ValueError / TypeError for bad inputs, all before anything is
        launched.
        """
        with self._ledger.preparing:
            key = (tensor.numel(), tensor.dtype, tensor.get_device(), variant, grid)
            prepared = self._prepared.get(key)
            if prepared is None:
                prepared = self.prepare(tensor, variant, grid)
            result = tensor.new_empty(tensor.shape) if out is None else out
            if result is not tensor or not tensor.is_contiguous():
                self._check_pair(tensor, result)
        sequence, parts, fingerprint = prepared
        self._begin_call(fingerprint)
        source, target = tensor.data_ptr(), result.data_ptr()
        for arguments, begin_byte in parts:
            arguments.input = source + begin_byte
            arguments.output = target + begin_byte
        self._run(sequence, recorder or NOT_RECORDING)
        self._end_call()
        return result

    def prepare(
        self,
        tensor: torch.Tensor,
        variant: str = "auto",
        grid: int | None = None,
        is_recorded: bool = False,
    ) -> PreparedCall:
        """Prepare calls on such a tensor, and load the build that records them. Otherwise the first
        call does it.

        Call it before a call of a new kind is captured in a CUDA graph. Raises like the call.
        """
        self._check_tensor(tensor)
        key = (tensor.numel(), tensor.dtype, tensor.get_device(), variant, grid)
        with self.on_device():
            prepared = self._prepare(tensor.numel(), tensor.dtype, variant, grid)
            if is_recorded:
                _ = prepared.sequence.instrumented
        self._prepared[key] = prepared
        return prepared

    def launches(
        self, num_elements: int, dtype: torch.dtype, variant: str = "auto", grid: int | None = None
    ) -> list[tuple[str, int]]:
        """The launches of a call: (kernel, blocks) each.

        Raises ValueError if it cannot be launched.
        """
        with self.on_device():
            sequence = self._prepare(num_elements, dtype, variant, grid).sequence
        return [
            (name, launch.grid.num_blocks)
            for name, launch in zip(sequence.names, sequence.launches, strict=True)
        ]

    def _prepare(
        self, num_elements: int, dtype: torch.dtype, variant: str, num_blocks: int | None
    ) -> PreparedCall:
        num_bytes = num_elements * dtype.itemsize
        if variant == "auto":
            variant = tuning_for(self.group.world_size).variant(num_bytes)
        variant_idx = self._variant_idx(variant, dtype)
        grid = self._grid(variant, variant_idx, num_bytes, num_blocks)
        step = int(self._library.functions.all_reduce_capacity(self._shape, variant_idx))
        parts = [
            _Part(
                self._arguments(num_elements=min(step, num_elements - begin)),
                begin * dtype.itemsize,
            )
            for begin in range(0, num_elements, step)
        ]
        launches = [Launch(variant_idx, 0, part.arguments, grid) for part in parts]
        text = f"all_reduce of {num_elements} x {dtype} ({variant}, {grid.num_blocks} blocks)"
        return PreparedCall(self._sequence(launches), parts, self._ledger.fingerprint(text))

    def _variant_idx(self, variant: str, dtype: torch.dtype) -> int:
        if variant not in self.variants:
            raise ValueError(
                f"variant {variant!r} is not known; choose auto or one of "
                f"{', '.join(self.variants)}"
            )
        return self._library.variants.index(f"{variant}/{ELEMENT_TYPES[str(dtype)]}")

    def _grid(self, variant: str, variant_idx: int, num_bytes: int, wanted: int | None) -> Grid:
        """Blocks and warps per block: as requested, else as the variant requires, else as tuned."""
        rule = self._library.functions.all_reduce_grid_rule(variant_idx)
        world_size = self.group.world_size
        blocks_of_rule = {_DECLARED["kOneBlock"]: 1, _DECLARED["kBlockPerRank"]: world_size}
        required = blocks_of_rule.get(rule)
        if self.is_on_cpu:
            num_blocks, num_warps = CPU_BLOCKS, 1
        else:
            tuned = tuning_for(world_size).grid(variant, num_bytes)
            num_blocks = tuned.num_blocks
            num_warps = max(1, tuned.warps_per_block * 32 // self._library.warp_width)
        num_blocks = wanted or required or num_blocks
        if required and num_blocks != required:
            raise ValueError(
                f"{variant} runs in {required} block(s) here (one in all, or one per rank), got a "
                f"grid of {num_blocks}"
            )
        if num_blocks > MAX_BLOCKS:
            raise ValueError(f"a grid of {num_blocks} blocks: give at most {MAX_BLOCKS}")
        return self._library.grid(variant_idx, num_blocks, self._warps or num_warps)

    def _check_tensor(self, tensor: torch.Tensor) -> None:
        if str(tensor.dtype) not in ELEMENT_TYPES:
            raise TypeError(f"tensor must be fp16, bf16 or fp32, got {tensor.dtype}")
        check_tensor("tensor", tensor, tensor.dtype, tuple(tensor.shape), self.device)

    def _check_pair(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """Cheap checks, made on every call.

        The first tensor of a kind is checked completely.
        """
        if not tensor.is_contiguous():
            self._check_tensor(tensor)
        if (
            out.dtype != tensor.dtype
            or out.shape != tensor.shape
            or out.get_device() != tensor.get_device()
            or not out.is_contiguous()
        ):
            check_tensor("out", out, tensor.dtype, tuple(tensor.shape), self.device)
        distance = abs(out.data_ptr() - tensor.data_ptr())
        if 0 < distance < tensor.numel() * tensor.element_size():
            raise ValueError(
                "out overlaps tensor in part; pass tensor itself to sum in place, or memory apart "
                "from it"
            )
