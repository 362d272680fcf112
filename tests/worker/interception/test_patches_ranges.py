"""Ranges for a profiler are opened in a replay only where one is at work."""

from __future__ import annotations

import torch
from torch.autograd.profiler import record_function

from supervisor.worker.interception.patches_ranges import SilentRanges


def _named() -> bool:
    with torch.profiler.profile() as profiler, record_function("a range of the script"):
        torch.ones(1)
    return any(event.name == "a range of the script" for event in profiler.events() or ())


def test_a_profiler_of_the_script_still_sees_its_ranges() -> None:
    ranges = SilentRanges()

    ranges.begin()
    try:
        with record_function("unseen") as silent:
            assert silent.record is None
        assert _named()
    finally:
        ranges.end()

    with record_function("seen") as opened:
        assert opened.record is not None
    assert _named()
