"""Healthy trainings of every kind are left alone by every policy, whatever their losses look like.

Each kind whose records tell enough is trained in this process and judged as a live run's steps are;
``pytest --all-healthy`` also runs each of all as a script, alone and supervised, and compares the
weights bit for bit, but for those that are still treated, as is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.healthy import KINDS, NEED_A_LIVE_RUN, STILL_TREATED, trial
from benchmarks.healthy.base import records_of
from supervisor.config import available_policies, load_config, load_policy
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import StepRecord
from supervisor.shortfalls import level_above
from supervisor.storage.journal.events import PROTECTIVE

POLICIES = [p.name for p in available_policies() if p.name != "observe_only"]
STEPS = 450
FEW = ("triplet", "gaussian_vae")
"""Kinds that are run for real in every `make test`."""


@lru_cache(maxsize=2)
def steps_of(kind: str) -> tuple[StepRecord, ...]:
    return tuple(records_of(KINDS[kind], STEPS, 0))


def judged(records: Sequence[StepRecord], policy: str) -> list[Judgement]:
    return list(Pipeline(load_config("default"), load_policy(policy)).update_all(records))


def treatments(judgements: Sequence[Judgement]) -> list[tuple[int, tuple[str, ...]]]:
    """Decisions that change anything of a training; a checkpoint or a trial step does not."""
    made = [j.decision for j in judgements if j.decision is not None]
    return [(d.step, d.actions) for d in made if {*d.actions, *d.undo} - PROTECTIVE]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NEED_A_LIVE_RUN])
def test_a_healthy_training_is_treated_by_no_policy_and_does_not_end_in_red(kind: str) -> None:
    records = steps_of(kind)

    found = {policy: treatments(judged(records, policy)) for policy in POLICIES}
    high = level_above(np.array([record.loss for record in records]))

    assert found == {policy: [] for policy in POLICIES}
    assert high is None or kind == "opponents"


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_the_size_of_a_loss_changes_no_decision(size: float) -> None:
    usual = steps_of("triplet")
    other = [
        StepRecord(
            step=r.step, loss=size * r.loss, grad_norm=size * r.grad_norm, lr=r.lr,
            batch_size=r.batch_size, loss_seen=True, grad_norm_seen=True,
        )
        for r in usual
    ]  # fmt: skip

    assert treatments(judged(other, "aggressive")) == []


def test_a_spike_that_the_scripts_own_clipping_tames_is_not_left_out() -> None:
    """A norm of 100 times the median, clipped at 1; without clipping it is a spike."""

    def course(clips_at: float) -> list[StepRecord]:
        norms = [0.56 + 0.05 * math.sin(step) for step in range(200)]
        norms[150] = 60.0
        return [
            StepRecord(
                step=step, loss=1.0 + 0.1 * math.cos(step), grad_norm=norm, clips_at=clips_at,
                batch_size=8, loss_seen=True, grad_norm_seen=True,
            )
            for step, norm in enumerate(norms)
        ]  # fmt: skip

    assert treatments(judged(course(1.0), "aggressive")) == []
    assert treatments(judged(course(math.inf), "default")) == [(150, ("skip_update",))]


def test_a_gradient_that_is_not_finite_is_left_out_whatever_the_script_clips_at() -> None:
    records = [
        StepRecord(
            step=step, loss=1.0, grad_norm=math.nan if step == 50 else 0.5, clips_at=1.0,
            batch_size=8, loss_seen=True, grad_norm_seen=True,
        )
        for step in range(60)
    ]  # fmt: skip

    assert treatments(judged(records, "default")) == [(50, ("skip_update",))]


def policies_of(kind: str) -> list[str]:
    """Under which it is left alone."""
    if kind in STILL_TREATED:
        return ["observe_only"]
    if kind in NEED_A_LIVE_RUN:
        return ["default", "observe_only"]
    return [*POLICIES, "observe_only"]


def test_the_kinds_that_are_exceptions_are_kinds() -> None:
    assert {*NEED_A_LIVE_RUN, *STILL_TREATED} <= {*KINDS}
    assert {*STILL_TREATED} <= NEED_A_LIVE_RUN


def runs(config: pytest.Config) -> list[tuple[str, str]]:
    if config.getoption("--all-healthy"):
        return [(kind, policy) for kind in KINDS for policy in policies_of(kind)]
    return [(kind, "aggressive") for kind in FEW]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "healthy_run" in metafunc.fixturenames:
        metafunc.parametrize("healthy_run", runs(metafunc.config), ids="-".join)


def test_a_supervised_healthy_run_ends_with_the_weights_of_plain_python(
    healthy_run: tuple[str, str], tmp_path: Path
) -> None:
    kind, policy = healthy_run
    (tmp_path / "alone").mkdir()
    (tmp_path / "beside").mkdir()

    alone = trial.alone(kind, 0, tmp_path / "alone")
    beside = trial.supervised(kind, 0, policy, tmp_path / "beside", {})

    assert alone["completed"]
    assert beside["completed"]
    assert beside["treatments"] == []
    assert beside["weights"] == alone["weights"] != ""
