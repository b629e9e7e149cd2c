"""How a call of skinny_gemm becomes a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from instrumented_kernels.fp8 import VECTOR_BYTES, Fp8Plan, are_whole_vectors, check_scale
from instrumented_kernels.kernel_library import KernelSource
from instrumented_kernels.local_plan import PreparedCall
from instrumented_kernels.tensors import (
    addresses_of,
    check_inputs,
    check_tensor,
    check_variant,
    check_whole,
)
from kprof.devices.on_use import torch
from kprof.devices.targets import Target
from kprof.recording.rank.null_recorder import AnyRecorder

_SOURCE: Final = KernelSource(Path(__file__).parent)
_DECLARED: Final = _SOURCE.header.constants
MAX_TOKENS: Final = 32
FEW_GROUP_ROWS: Final = _DECLARED["kFewGroupRows"]
# By the lanes of a warp, for blocks with few rows, and with more.
RING_WARPS: Final = {
    32: (_DECLARED["kRingWarpsOf32"], _DECLARED["kRingWarpsOf32ManyRows"]),
    64: (_DECLARED["kRingWarpsOf64"],) * 2,
}
GROUPS: Final = {
    32: (_DECLARED["kGroupsOf32"], _DECLARED["kGroupsOf32ManyRows"]),
    64: (_DECLARED["kGroupsOf64"],) * 2,
}
VARIANTS: Final = ("tiled", "split_k", "specialised", "tuned", "direct", "ring", "groups")
# These load single bytes if addresses or K are not multiples of a vector. The others fall back to
# `split_k` then.
_ANY_ADDRESS: Final = ("tiled", "split_k")
_WITH_ROLES: Final = ("specialised", "tuned")
# Of the kind of a call that names no variant.
_DEFAULT: Final = "default"
_TILE_ROWS: Final = 16
_MIN_SM: Final = 89
_FP8_ARCHS: Final = ("gfx940", "gfx941", "gfx942", "gfx950")
_CPU_WARPS: Final = 4
# Few tiles of 16 rows get more warps each in `split_k`, and at most 8 in `direct`: two blocks of
# `direct` with 16 do not fit an SM.
_FEW_TILES: Final = 400
_DIRECT_WARPS: Final = 8
_MANY_TOKENS: Final = 16
# How often a block of the kernels of `ring` can have 16 rows. The sums of more do not fit the
# registers.
_RING_TILES: Final = {8: (2, 4, 8), 16: (2, 4, 8), 32: (2, 4)}
# The most rows that a block of the kernels of `groups` can have.
_GROUP_ROWS: Final = (FEW_GROUP_ROWS, 64)
_GROUP_WARPS: Final = 4
# The only devices with the instruction that `groups` is for.
_GROUPS_ARCHS: Final = ("sm_90a",)
# The most rows that `ring` was timed with.
_MOST_RING_ROWS: Final = 16384
_CPU_BLOCKS: Final = 3
# Slots of the queue that fit shared memory, by the kernel's number of tokens.
SLOTS: Final = {8: 6, 16: 4, 32: 3}


class Roles(NamedTuple):
    """The warps of a block of `specialised` and `tuned`, and the slots of their queue.

    Producers load weights.
    """

    num_producers: int
    num_consumers: int
    num_slots: int
    num_token_producers: int = 1

    @property
    def num_warps(self) -> int:
        """The warps of a block."""
        return self.num_producers + self.num_token_producers + self.num_consumers


def _max_tokens(num_tokens: int) -> int:
    return next(tokens for tokens in SLOTS if num_tokens <= tokens)


class Kind(NamedTuple):
    """The kind of a call."""

    num_tokens: int
    num_rows: int
    depth: int
    variant: str
    roles: Roles | None
    is_whole: bool

    @property
    def max_tokens(self) -> int:
        """The most tokens of the kernel for this call."""
        return _max_tokens(self.num_tokens)

    @property
    def num_tiles(self) -> int:
        """Tiles of 16 rows."""
        return -(-self.num_rows // _TILE_ROWS)


class Plan(Fp8Plan):
    """Calls of skinny_gemm on one device; see LocalPlan. `fp8` is the dtype of its inputs."""

    source = _SOURCE

    def __call__(
        self,
        tokens: torch.Tensor,
        weights: torch.Tensor,
        scale: float = 1.0,
        *,
        variant: str | None = None,
        roles: Roles | None = None,
        out: torch.Tensor | None = None,
        recorder: AnyRecorder | None = None,
    ) -> torch.Tensor:
        """scale * tokens x weights^T as fp16 [M, N], accumulated in fp32.

        `tokens`: fp8 [M, K], up to 32 of them, `weights`: fp8 [N, K], both contiguous. `roles` are
        for `specialised` and `tuned`. The defaults of both depend on the shape. Raises TypeError or
        ValueError before any launch.
        """
        check_inputs(tokens=tokens, weights=weights)
        check(tokens, weights, scale, self.fp8, self.device)
        num_tokens, depth = tokens.shape
        num_rows = len(weights)
        check_variant(variant or "direct", VARIANTS)
        self._check_arch()
        result = allocate(tokens, weights) if out is None else out
        check_tensor("out", result, torch.float16, (num_tokens, num_rows), self.device)
        inputs = addresses_of(tokens=tokens, weights=weights)
        is_whole = are_whole_vectors(depth, VECTOR_BYTES, inputs)
        kind = Kind(num_tokens, num_rows, depth, variant or _DEFAULT, roles, is_whole)
        self._run(kind, recorder, scale=scale, out=result.data_ptr(), **inputs)
        return result

    def default_variant(self, num_tokens: int, num_rows: int) -> str:
        """The variant of calls that name none. Raises ValueError for too many tokens."""
        check_num_tokens(num_tokens)
        kind = _ring_kind(num_tokens, num_rows)
        has_ring = self.options.target is Target.CUDA and self._fits_ring(kind)
        processors = self._library.num_processors if has_ring else 0
        has_groups = has_ring and all(arch in _GROUPS_ARCHS for arch in self.options.archs)
        return fastest_variant(num_tokens, num_rows, processors, has_groups=has_groups)

    def default_roles(self, variant: str, num_tokens: int) -> Roles:
        """The roles of calls that name none. Raises ValueError for too many tokens."""
        check_num_tokens(num_tokens)
        num_slots = SLOTS[_max_tokens(num_tokens)]
        if variant == "tuned" and not self.is_on_cpu:
            return Roles(4, 2, num_slots, 2)
        return Roles(2, 1, min(2, num_slots))

    def _fits_ring(self, kind: Kind) -> bool:
        num_blocks, _ = self._ring_geometry(kind)
        return self._library.fits_shared_memory(self._variant_idx(kind, num_blocks))

    def _prepare_kind(self, kind: Kind) -> PreparedCall:
        if kind.variant == _DEFAULT:
            kind = kind._replace(variant=self.default_variant(kind.num_tokens, kind.num_rows))
        roles = (
            self.default_roles(kind.variant, kind.num_tokens)
            if kind.roles is None
            else Roles(*kind.roles)
        )
        check_roles(roles, kind, self._library.warp_width)
        if not kind.is_whole and kind.variant not in _ANY_ADDRESS:
            kind = kind._replace(variant="split_k")
        arguments = self._filled(
            self.source.shape(kind.num_tokens, kind.num_rows, kind.depth),
            is_whole=int(kind.is_whole),
            num_producers=roles.num_producers,
            num_token_producers=roles.num_token_producers,
            num_slots=roles.num_slots,
        )
        if kind.num_tokens * kind.num_rows == 0:
            return self._prepare(arguments, [])
        num_blocks, num_warps = self._geometry(kind, roles, kind.num_tiles)
        variant_idx = self._variant_idx(kind, num_blocks)
        if not self._library.fits_shared_memory(variant_idx):
            raise ValueError(
                f"{kind.variant} takes more shared memory than {self.device} gives a block; use "
                "direct"
            )
        tracks_per_block = 1 if kind.variant == "groups" else None
        return self._prepare_launch(arguments, variant_idx, num_blocks, num_warps, tracks_per_block)

    def _variant_idx(self, kind: Kind, num_blocks: int) -> int:
        sizes = {"ring": _ring_tiles, "groups": _group_rows}
        size = sizes[kind.variant](kind, num_blocks) if kind.variant in sizes else ""
        return self._library.variants.index(f"{kind.variant}{size}/{kind.max_tokens}")

    def _geometry(self, kind: Kind, roles: Roles, num_tiles: int) -> tuple[int, int]:
        """Blocks, and warps of each."""
        if kind.variant in _WITH_ROLES:
            return num_tiles, roles.num_warps
        if kind.variant == "ring":
            return self._ring_geometry(kind)
        if kind.variant == "groups":
            return self._groups_geometry(kind)
        most = 512 // self._library.warp_width
        if kind.variant == "tiled":
            num_warps = _CPU_WARPS if self.is_on_cpu else 4
            return -(-num_tiles // num_warps), num_warps
        num_warps = most if num_tiles < _FEW_TILES else most // 2
        if kind.variant == "direct":
            num_warps = min(num_warps, _DIRECT_WARPS)
        return num_tiles, _CPU_WARPS if self.is_on_cpu else num_warps

    @property
    def _num_processors(self) -> int:
        return _CPU_BLOCKS if self.is_on_cpu else self._library.num_processors

    def _ring_geometry(self, kind: Kind) -> tuple[int, int]:
        processors = self._num_processors
        num_blocks = _ring_blocks(kind, processors)
        has_many_rows = _ring_tiles(kind, num_blocks) > _DECLARED["kFewRingTiles"]
        num_warps = RING_WARPS[self._library.warp_width][has_many_rows]
        return num_blocks, min(_CPU_WARPS, num_warps) if self.is_on_cpu else num_warps

    def _groups_geometry(self, kind: Kind) -> tuple[int, int]:
        num_blocks = _groups_blocks(kind, self._num_processors)
        has_many_rows = _group_rows(kind, num_blocks) > FEW_GROUP_ROWS
        return num_blocks, GROUPS[self._library.warp_width][has_many_rows] * _GROUP_WARPS

    def _check_arch(self) -> None:
        archs = self.options.archs if self.options.target is not Target.CPU else ()
        for arch in archs:
            if arch.startswith("sm_") and int(arch[3:].rstrip("af")) < _MIN_SM:
                raise ValueError(f"{arch} multiplies no fp8; skinny_gemm needs sm_89 or later")
            if arch.startswith("gfx") and not arch.startswith(_FP8_ARCHS):
                raise ValueError(f"{arch} multiplies no fp8; skinny_gemm needs gfx942 or gfx950")


def _ring_kind(num_tokens: int, num_rows: int) -> Kind:
    return Kind(num_tokens, num_rows, 0, "ring", None, is_whole=True)


def _ring_blocks(kind: Kind, processors: int) -> int:
    """A block per processor, unless a block would have too many rows or less than a tile."""
    most_tiles = _RING_TILES[kind.max_tokens][-1]
    return max(1, min(processors, kind.num_tiles), -(-kind.num_tiles // most_tiles))


def _ring_tiles(kind: Kind, num_blocks: int) -> int:
    """The smallest kernel of `ring` whose blocks can have this share of the rows."""
    most_rows = -(-kind.num_rows // num_blocks)
    sizes = _RING_TILES[kind.max_tokens]
    return next(tiles for tiles in sizes if most_rows <= tiles * _TILE_ROWS)


def _groups_blocks(kind: Kind, processors: int) -> int:
    """A block per processor if it has few rows, otherwise two or more."""
    few, most = _GROUP_ROWS
    if kind.num_rows <= processors * few:
        return max(1, min(processors, kind.num_tiles))
    return max(2 * processors, -(-kind.num_rows // most))


def _group_rows(kind: Kind, num_blocks: int) -> int:
    """The smallest kernel of `groups` whose blocks can have this share of the rows."""
    few, most = _GROUP_ROWS
    return few if num_blocks * few >= kind.num_rows else most


def fastest_variant(
    num_tokens: int, num_rows: int, ring_processors: int, *, has_groups: bool = False
) -> str:
    """The fastest on an H200, or at most 3 % behind it.

    `ring_processors`: the processors of a device that suits `ring`, otherwise 0. `has_groups`:
    groups of warps multiply fp8 there without unpacking it.
    """
    if has_groups:
        return "groups"
    if ring_processors and num_rows <= _MOST_RING_ROWS:
        num_blocks = _ring_blocks(_ring_kind(num_tokens, num_rows), ring_processors)
        # Without a last wave that leaves most processors idle.
        if num_blocks <= ring_processors or 2 * (-num_blocks % ring_processors) <= ring_processors:
            return "ring"
    has_many_rows = num_rows >= _FEW_TILES * _TILE_ROWS
    return "split_k" if num_tokens > _MANY_TOKENS and has_many_rows else "direct"


def check_roles(roles: Roles, kind: Kind, warp_width: int) -> None:
    """Raise ValueError for roles that a block cannot have."""
    if kind.roles is not None and kind.variant not in _WITH_ROLES:
        raise ValueError(f"{kind.variant} has no roles; they are for {' and '.join(_WITH_ROLES)}")
    names = ("producers", "consumers", "slots", "token producers")
    for name, number in zip(names, roles, strict=True):
        check_whole(f"the number of {name}", number)
    most_warps = 512 // warp_width
    num_slots = SLOTS[kind.max_tokens]
    if roles.num_producers < 1 or not 1 <= roles.num_consumers <= 4:
        raise ValueError(
            f"{roles.num_producers} producers and {roles.num_consumers} consumers: give 1 or more "
            "and 1 to 4"
        )
    if roles.num_token_producers < 1:
        raise ValueError(f"{roles.num_token_producers} token producers: give 1 or more")
    if roles.num_warps > most_warps:
        raise ValueError(
            f"{roles.num_producers} producers, {roles.num_token_producers} token producers and "
            f"{roles.num_consumers} consumers do not fit a block of 512 threads; "
            f"give {most_warps} in all"
        )
    if not 1 <= roles.num_slots <= num_slots:
        raise ValueError(
            f"a queue of {roles.num_slots} slots: shared memory holds 1 to {num_slots} for "
            f"{kind.max_tokens} tokens"
        )


def check(
    tokens: torch.Tensor, weights: torch.Tensor, scale: float, fp8: torch.dtype, device: str
) -> None:
    """Raise TypeError or ValueError for invalid arguments."""
    if tokens.dim() != 2 or weights.dim() != 2:
        raise ValueError(
            "tokens and weights must have shapes [M, K] and [N, K], got "
            f"{list(tokens.shape)} and {list(weights.shape)}"
        )
    num_tokens, depth = tokens.shape
    check_num_tokens(num_tokens)
    check_tensor("tokens", tokens, fp8, (num_tokens, depth), device)
    check_tensor("weights", weights, fp8, (weights.shape[0], depth), device)
    check_scale(scale)


def check_num_tokens(num_tokens: int) -> None:
    """Raise ValueError for more tokens than the kernels multiply."""
    if num_tokens > MAX_TOKENS:
        raise ValueError(f"{num_tokens} tokens: a skinny GEMM has up to {MAX_TOKENS}")


def allocate(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Allocate the output."""
    return tokens.new_empty((tokens.shape[0], weights.shape[0]), dtype=torch.float16)
