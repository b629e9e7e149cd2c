"""The plan: compiled kernels, symmetric heap and workspace of one group of ranks, and how a call is run.

Created once per group (collective), used for any number of calls, freed by `close`. All sizes come from the compiled
kernel (layout.h); nothing is declared twice. What a call of a certain size needs is worked out once and kept, so that
later calls only fill in two addresses.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from instrumented_kernels.all_reduce.tuning import tuning_for
from instrumented_kernels.kernel_library import (
    MAX_RANKS,
    KernelBuilds,
    KernelLibrary,
    PreparedLaunch,
    build_options,
    current_stream,
)
from instrumented_kernels.team_memory import TeamMemory
from instrumented_kernels.tensors import check_tensor
from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target, record_of
from kprof.recording.recorder import NullRecorder, Recorder
from kprof.regions import RegionTable

if TYPE_CHECKING:
    import torch

    from kprof.groups import Group

DEFAULT_TIMEOUT_S: Final = 5.0
CPU_BLOCKS: Final = 2
# What kernel.hip is compiled for, by the name of the torch dtype.
ELEMENT_TYPES: Final = {"torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32"}
# all_reduce::kMaxBlocks and all_reduce::GridRule.
MAX_BLOCKS: Final = 254
_ONE_BLOCK, _BLOCK_PER_RANK = 1, 2
_NO_RECORDER: Final = NullRecorder()
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class HeapSizes:
    """Bytes of the symmetric heap for one parity: for packets and for bulk. The rest goes in several launches."""

    packet_bytes: int
    bulk_bytes: int


_CPU_HEAP_SIZES: Final = HeapSizes(1 << 20, 1 << 20)
_GPU_HEAP_SIZES: Final = HeapSizes(32 << 20, 32 << 20)


class _Shape(ctypes.Structure):
    """all_reduce::Shape of layout.h."""

    _fields_ = [
        ("world_size", ctypes.c_uint32),
        ("packet_bytes", ctypes.c_uint32),
        ("bulk_bytes", ctypes.c_uint32),
    ]


class _Call(ctypes.Structure):
    """all_reduce::CallArguments of kernel.hip; its size is compared with the compiled one."""

    _fields_ = [
        ("shape", _Shape),
        ("rank", ctypes.c_uint32),
        ("num_elements", ctypes.c_uint32),
        ("timeout_ticks", ctypes.c_uint64),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("heaps", ctypes.c_void_p * MAX_RANKS),
    ]


class _Launch(NamedTuple):
    """One launch of a call: all but the addresses. `begin_byte` is where its part of the tensor begins."""

    prepared: PreparedLaunch
    call: _Call
    begin_byte: int


class Plan:
    """Everything that all-reduces on one group of ranks need. Creation is collective.

    `device` is "cpu" or the current torch device. `warps_per_block` is what was tuned unless given. On the CPU target
    `options` may set the warp width and `schedule_seed` the interleaving. Raises ValueError, or TargetError /
    BuildError of kprof.
    """

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
    ) -> None:
        if not 1 <= group.world_size <= MAX_RANKS:
            raise ValueError(f"{group.world_size} ranks: give 1 to {MAX_RANKS}")
        self.group = group
        self.device = device
        self.options = options or build_options(device)
        self.regions = RegionTable.from_header(_HERE / "regions.h")
        self._builds = KernelBuilds(_load, self.options)
        self._library = self._builds.plain
        self._warps = warps_per_block
        self._sizes = heap_sizes or (
            _GPU_HEAP_SIZES if record_of(self.options.target).is_gpu else _CPU_HEAP_SIZES
        )
        self._shape = _Shape(group.world_size, self._sizes.packet_bytes, self._sizes.bulk_bytes)
        self._check_same_on_all_ranks()
        functions, shape = self._library.functions, ctypes.byref(self._shape)
        self._memory = TeamMemory(
            group,
            device,
            heap_bytes=functions.all_reduce_heap_bytes(shape),
            workspace_bytes=functions.all_reduce_workspace_bytes(shape),
        )
        self._timeout_ticks = int(timeout_s * self._library.ticks_per_second)
        self._schedule_seed = schedule_seed
        self._num_launches = 0
        self._prepared: dict[tuple[Any, ...], list[_Launch]] = {}

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
        recorder: Recorder | NullRecorder | None = None,
    ) -> torch.Tensor:
        """The sum of `tensor` over all ranks, bitwise the same on each: added in fp32 in rank order, rounded once.

        fp16, bf16 or fp32, contiguous, any length; `out` (by default new memory) may be `tensor` itself. All ranks make
        the same calls in the same order, one after the other; no barrier is needed between them. "auto" takes the
        variant that was measured to be fastest for the size, `grid` the number of blocks. On a GPU this only launches
        (it may be captured in a CUDA graph), and `wait` raises what went wrong; on the CPU it raises PeerTimeoutError
        itself when a peer never answered. Raises ValueError / TypeError for bad inputs before anything is launched.
        """
        key = (tensor.numel(), tensor.dtype, tensor.get_device(), variant, grid)
        launches = self._prepared.get(key)
        if launches is None:
            launches = self.prepare(tensor, variant, grid)
        result = tensor.new_empty(tensor.shape) if out is None else out
        source, target = tensor.data_ptr(), result.data_ptr()
        if result is not tensor or not tensor.is_contiguous():
            self._check_pair(tensor, result)
        for launch in launches:
            launch.call.input = source + launch.begin_byte
            launch.call.output = target + launch.begin_byte
            self._launch(launch, recorder or _NO_RECORDER)
        return result

    def prepare(
        self,
        tensor: torch.Tensor,
        variant: str = "auto",
        grid: int | None = None,
        is_recorded: bool = False,
    ) -> list[_Launch]:
        """Keep what calls on such a tensor need, and load what records them; the first call does it otherwise.

        Do it before a call of a new kind is captured in a CUDA graph. Raises as the call would.
        """
        self._check_tensor(tensor)
        key = (tensor.numel(), tensor.dtype, tensor.get_device(), variant, grid)
        launches = self._make_launches(tensor.numel(), tensor.dtype, variant, grid)
        if is_recorded:
            for launch in launches:
                _ = launch.prepared.instrumented
        self._prepared[key] = launches
        return launches

    def wait(self) -> None:
        """Wait for all calls on this rank; raises PeerTimeoutError when a peer never answered.

        The plan is void after that: what the peer owed may still arrive.
        """
        self._memory.raise_if_timed_out(self.regions)

    def launches(
        self, num_elements: int, dtype: torch.dtype, variant: str = "auto", grid: int | None = None
    ) -> list[tuple[str, int]]:
        """What a call would launch: (kernel, blocks) each; raises ValueError for what cannot be launched."""
        launches = self._make_launches(num_elements, dtype, variant, grid)
        return [(launch.prepared.name, launch.prepared.grid.num_blocks) for launch in launches]

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap."""
        self._memory.close()

    def _make_launches(
        self, num_elements: int, dtype: torch.dtype, variant: str, num_blocks: int | None
    ) -> list[_Launch]:
        library, element_bytes = self._library, dtype.itemsize
        if variant == "auto":
            tuning = tuning_for(self.group.world_size)
            variant = tuning.variant(num_elements * element_bytes)
        variant_idx = self._variant_idx(variant, dtype)
        shape = self._grid_shape(variant, variant_idx, num_elements * element_bytes, num_blocks)
        grid = library.grid(variant_idx, *shape)
        step = int(library.functions.all_reduce_capacity(ctypes.byref(self._shape), variant_idx))
        calls = {
            begin: self._make_call(min(step, num_elements - begin))
            for begin in range(0, num_elements, step)
        }
        return [
            _Launch(self._builds.prepare(variant_idx, 0, call, grid), call, begin * element_bytes)
            for begin, call in calls.items()
        ]

    def _variant_idx(self, variant: str, dtype: torch.dtype) -> int:
        if variant not in self.variants:
            raise ValueError(
                f"variant {variant!r} is not known; choose auto or one of {', '.join(self.variants)}"
            )
        return self._library.variant_idx(f"{variant}/{ELEMENT_TYPES[str(dtype)]}")

    def _grid_shape(
        self, variant: str, variant_idx: int, num_bytes: int, wanted: int | None
    ) -> tuple[int, int]:
        """Blocks and warps per block: what was asked for, else what the variant demands, else what was tuned."""
        required = self._required_blocks(variant_idx)
        if self.options.target is Target.CPU:
            num_blocks, num_warps = CPU_BLOCKS, 1
        else:
            tuned = tuning_for(self.group.world_size).grid(variant, num_bytes)
            num_blocks = tuned.num_blocks
            num_warps = max(1, tuned.warps_per_block * 32 // self._library.warp_width)
        num_blocks = wanted or required or num_blocks
        if required and num_blocks != required:
            raise ValueError(
                f"{variant} runs in {required} block(s) here (one in all, or one per rank), got a grid of {num_blocks}"
            )
        if num_blocks > MAX_BLOCKS:
            raise ValueError(f"a grid of {num_blocks} blocks: give at most {MAX_BLOCKS}")
        return num_blocks, self._warps or num_warps

    def _required_blocks(self, variant_idx: int) -> int | None:
        rule = self._library.functions.all_reduce_grid_rule(variant_idx)
        return {_ONE_BLOCK: 1, _BLOCK_PER_RANK: self.group.world_size}.get(rule)

    def _make_call(self, num_elements: int) -> _Call:
        return _Call(
            self._shape,
            self.group.rank,
            num_elements,
            self._timeout_ticks,
            None,
            None,
            self._memory.workspace_address,
            self._memory.heaps,
        )

    def _launch(self, launch: _Launch, recorder: Recorder | NullRecorder) -> None:
        self._num_launches += 1
        self._builds.launch(
            launch.prepared,
            regions=self.regions,
            recorder=recorder,
            stream=current_stream(self.device),
            schedule_seed=self._schedule_seed and self._schedule_seed + 131 * self._num_launches,
            tracks_per_block=1,
        )
        if self.device == "cpu":
            self.wait()

    def _check_tensor(self, tensor: torch.Tensor) -> None:
        if str(tensor.dtype) not in ELEMENT_TYPES:
            raise TypeError(f"tensor must be fp16, bf16 or fp32, got {tensor.dtype}")
        device_type = self.device.partition(":")[0]
        check_tensor("tensor", tensor, tensor.dtype, tuple(tensor.shape), device_type)

    def _check_pair(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """On every call, so only what is cheap; a tensor of a kind that was never seen is checked as a whole."""
        if not tensor.is_contiguous():
            self._check_tensor(tensor)
        if (
            out.dtype != tensor.dtype
            or out.shape != tensor.shape
            or out.get_device() != tensor.get_device()
            or not out.is_contiguous()
        ):
            check_tensor("out", out, tensor.dtype, tuple(tensor.shape), tensor.device.type)
        distance = abs(out.data_ptr() - tensor.data_ptr())
        if 0 < distance < tensor.numel() * tensor.element_size():
            raise ValueError(
                "out overlaps tensor in part; pass tensor itself to sum in place, or memory apart from it"
            )

    def _check_same_on_all_ranks(self) -> None:
        plans = self.group.all_gather((self._sizes, self._warps))
        for rank, plan in enumerate(plans):
            if plan != plans[0]:
                raise ValueError(
                    f"rank {rank} has the plan {plan}, rank 0 has {plans[0]}; they must be equal"
                )


def _load(options: BuildOptions) -> KernelLibrary:
    library = KernelLibrary(_HERE / "kernel.hip", options, _Call)
    functions, shape = library.functions, ctypes.POINTER(_Shape)
    for name in ("all_reduce_heap_bytes", "all_reduce_workspace_bytes"):
        function = getattr(functions, name)
        function.argtypes, function.restype = [shape], ctypes.c_uint64
    functions.all_reduce_capacity.argtypes = [shape, ctypes.c_int]
    functions.all_reduce_capacity.restype = ctypes.c_uint64
    functions.all_reduce_grid_rule.restype = ctypes.c_uint32
    return library
