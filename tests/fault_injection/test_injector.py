from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from supervisor.errors import ConfigError
from supervisor.fault_injection.injector import FaultInjector

WEIGHT = {"kind": "weight", "step": 5}


def weights_after(injector: FaultInjector, step: int) -> list[float]:
    parameter = torch.zeros(3, requires_grad=True)
    injector.on_updated(step, torch.optim.SGD([parameter], lr=0.1))
    return parameter.tolist()


def test_a_fault_strikes_at_its_step_alone(tmp_path: Path) -> None:
    injector = FaultInjector([WEIGHT], tmp_path / "faults.json")

    assert weights_after(injector, 4) == [0.0, 0.0, 0.0]
    assert weights_after(injector, 5) == [0.0, 1e6, 0.0]


def test_a_later_attempt_does_not_meet_it_again(tmp_path: Path) -> None:
    weights_after(FaultInjector([WEIGHT], tmp_path / "faults.json"), 5)

    again = FaultInjector([WEIGHT], tmp_path / "faults.json")

    assert weights_after(again, 5) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"kind": "sigkil", "step": 3}, "did you mean sigkill"),
        ({"kind": "sigkill", "at": 3}, "unknown key 'at'"),
        ({"kind": "sigkill", "moment": "later"}, "moment: 'later' is none of forward"),
    ],
)
def test_a_wrong_entry_is_refused_with_what_is_right(
    entry: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        FaultInjector([entry], tmp_path / "faults.json")
