"""Where the seconds of a run went."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.report.facts.ledger import build_cost
from supervisor.report.facts.run_data import load_material
from tests.report import synthetic_run
from tests.report.synthetic_run import ALL_ENDS, SyntheticRun


@pytest.mark.parametrize("name", sorted(ALL_ENDS))
def test_the_parts_add_up_to_the_whole(tmp_path: Path, name: str) -> None:
    cost = build_cost(load_material(ALL_ENDS[name](tmp_path / "run")))

    parts = (cost.useful_s, cost.replayed_s, cost.stalled_s, cost.down_s, cost.other_s)
    assert min(parts) >= 0.0
    assert sum(parts) == pytest.approx(cost.wall_s, abs=1e-6)


def test_a_restart_costs_the_steps_done_again_and_the_time_without_a_worker(tmp_path: Path) -> None:
    cost = build_cost(load_material(synthetic_run.treated(tmp_path / "run")))

    assert (cost.useful_steps, cost.replayed_steps, cost.skipped_updates) == (300, 30, 1)
    assert cost.useful_s == pytest.approx(30.0, abs=0.05)
    assert cost.replayed_s == pytest.approx(3.0, abs=0.05)
    assert cost.stalled_s == pytest.approx(0.01)
    # From step 200 to step 171 of attempt 2: 0.05 s, 1 s of backoff, 3 s of start, the step itself.
    assert cost.down_s == pytest.approx(4.15, abs=0.01)


def test_a_hang_is_time_that_stood_still(tmp_path: Path) -> None:
    cost = build_cost(load_material(synthetic_run.hung(tmp_path / "run")))

    assert cost.stalled_s == pytest.approx(65.0)


def test_a_rollback_in_place_makes_its_steps_useless_and_counts_its_stall_once(
    tmp_path: Path,
) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.begin(1)
    run.steps(0, 80)
    run.action("rollback", 80, cost_s=0.5)
    run.event("rollback", step=80, from_step=80, to_step=60, cost_s=0.5)
    run.steps(81, 100)
    run.exit("completed", 100, returncode=0)

    cost = build_cost(load_material(run.finish("completed")))

    assert (cost.useful_steps, cost.replayed_steps) == (81, 20)
    assert cost.stalled_s == pytest.approx(0.5)


def test_a_rollback_that_was_taken_back_costs_the_steps_since(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.begin(1)
    run.steps(0, 80)
    run.event("rollback", step=80, from_step=80, to_step=60, before_step=81)
    run.steps(81, 100)
    run.action("reinstate", 82, applied=True, fields={"from_step": 82, "kept_step": 81})
    run.exit("completed", 100, returncode=0)

    cost = build_cost(load_material(run.finish("completed")))

    assert (cost.useful_steps, cost.replayed_steps) == (99, 2)
