"""`kprof doctor --measure` on GPUs: copies within each one and between each pair have a plausible rate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from kprof.devices.targets import Target, count_devices
from kprof.recording.rank import ceilings

pytestmark = pytest.mark.gpu


def test_every_gpu_and_every_pair_has_a_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(1)
    monkeypatch.setenv("KPROF_CACHE_DIR", str(tmp_path))
    measured = ceilings.measure_host()
    gpus = [f"cuda:{i}" for i in range(count_devices(Target.CUDA))]
    assert [each.device for each in measured.devices] == ["cpu", *gpus]
    assert [(pair.source, pair.target) for pair in measured.pairs] == list(permutations(gpus, 2))
    # A wrong unit or a copy that nobody waited for would be a factor of a thousand off.
    for each in measured.devices[1:]:
        assert 100 < each.ceilings.copy_gb_s < 20_000
    for pair in measured.pairs:
        assert 1 < pair.gb_s < 2_000
    ceilings.keep(measured)
    assert ceilings.kept_ceilings("cuda:0") == measured.devices[1].ceilings
