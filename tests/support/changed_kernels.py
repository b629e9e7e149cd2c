"""Kernels whose device code is changed, for example to break a rule on purpose. They are built from a copy of their
sources."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from instrumented_kernels.device_plan import DevicePlan
from instrumented_kernels.kernel_library import KernelSource
from kprof.devices.cache import cache_dir

Plan = TypeVar("Plan", bound=DevicePlan)
# A file, what stands there, and what takes its place.
Change = tuple[str, str, str]

_DEVICE_DIR: Final = Path(__file__).parents[2] / "instrumented_kernels" / "device"
_PARITY: Final = "uint32_t parity() const { return "
_ARRIVES: Final = "  signals::publish_block([&] { add_device(arrivals, 1u); });\n"
RULES: Final[dict[str, list[Change]]] = {
    "release": [
        ("signals.h", "fence_release_system();", ""),
        ("signals.h", "release_block_system();", "sync_block();"),
    ],
    "acquire": [("signals.h", "fence_acquire_system();", "")],
    "warp sync": [
        ("signals.h", "fence_release_system();\n  sync_warp();", "fence_release_system();"),
        ("specialised_variant.h", "sync_warp();\n  if (lane_id() == 0) store", "if (lane_id() == 0) store"),
    ],
    "peers may be ahead": [("signals.h", "flag >= epoch", "flag == epoch")],
    "two buffers": [("call.h", f"{_PARITY}epoch() & 1u; }}", f"{_PARITY}0; }}")],
    "all blocks arrive": [
        ("dcp.h", _ARRIVES, f"  if (block_id() == num_blocks() - 1) return false;\n{_ARRIVES}")
    ],
}  # fmt: skip


def breaking(plan: type[Plan], *rules: str) -> type[Plan]:
    """Plans of the same kernel that break these rules; without any, `plan` itself."""
    changes = [change for rule in rules for change in RULES[rule]]
    return changed(plan, "-".join(rules).replace(" ", "_"), changes) if rules else plan


def changed(plan: type[Plan], name: str, changes: Sequence[Change]) -> type[Plan]:
    """Plans of the same kernel with changes in those files that it has; `name` tells them apart."""
    own = plan.source
    folder = cache_dir() / "changed_kernels" / f"{own.folder.name}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    num_changed = 0
    for path in [*own.folder.glob("*.h"), own.folder / "kernel.hip", *_DEVICE_DIR.glob("*.h")]:
        text = path.read_text()
        for _, old, new in (change for change in changes if change[0] == path.name):
            assert old in text, f"{path} has no {old!r}"
            text = text.replace(old, new)
            num_changed += 1
        _write(folder / path.name, text)
    assert num_changed, f"{own.folder.name} has none of the files to change"

    class Changed(plan):  # type: ignore[misc, valid-type]
        source = KernelSource(folder, own.tracks_per_block)

    return Changed


def _write(path: Path, text: str) -> None:
    """In one step: other processes that build the same may read it now."""
    if path.is_file() and path.read_text() == text:
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)
