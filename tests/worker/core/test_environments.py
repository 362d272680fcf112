"""Reinforcement learning is known by the libraries that are loaded, or by the setting."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from supervisor.worker.core.step_probe import StepProbe


def in_environment(asked: bool | None) -> bool:
    probe = StepProbe(asked)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    return probe.record(0, 1.0, optimizer).in_environment


def test_a_loaded_library_of_environments_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gymnasium", raising=False)
    before = in_environment(None)
    monkeypatch.setitem(sys.modules, "gymnasium", ModuleType("gymnasium"))

    assert (before, in_environment(None)) == (False, True)
    assert in_environment(False) is False


@pytest.mark.parametrize(("trainer", "acts"), [("grpo", True), ("ppo", True), ("dpo", False)])
def test_of_trl_only_trainers_that_make_their_own_data_tell(
    monkeypatch: pytest.MonkeyPatch, trainer: str, acts: bool
) -> None:
    name = f"trl.trainer.{trainer}_trainer"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))

    assert in_environment(None) is acts


def test_the_setting_needs_no_library() -> None:
    assert in_environment(True) is True
