"""What the table of the healthy kinds says of a run that was disturbed."""

from __future__ import annotations

from benchmarks.survival_table import Row, tell_kinds


def row(kind: str, arm: str, *, same: bool = True, treatments: tuple[str, ...] = ()) -> Row:
    return {"kind": kind, "seed": 0, "arm": arm, "same": same, "treatments": [*treatments]}


def test_every_policy_is_counted_and_every_disturbed_run_named() -> None:
    rows = [
        row("hinge", "default"),
        row("dqn", "default", same=False, treatments=("cut_lr at 40",)),
        row("hinge", "vae"),
        row("gan", "vae", same=False),
    ]

    told = tell_kinds(rows, {})

    assert "default: 2 runs, 1 treatments, 1 with the weights" in told
    assert "vae: 2 runs, 0 treatments, 1 with the weights" in told
    assert "dqn seed 0, default: OTHER WEIGHTS; cut_lr at 40" in told
    assert "gan seed 0, vae: OTHER WEIGHTS; no treatment" in told
    assert "hinge" not in told


def test_a_treatment_that_is_known_is_told_with_its_reason_and_not_hidden() -> None:
    rows = [
        row("growing", "default", same=False, treatments=("rollback at 114",)),
        row("hinge", "default"),
        row("dqn", "default", same=False, treatments=("cut_lr at 40",)),
    ]

    told = tell_kinds(rows, {"growing": "a reason", "hinge": "another"})

    assert "2 treatments, 1 with the weights of plain python, bit for bit; 1 treated, known" in told
    assert "OTHER WEIGHTS; rollback at 114; treated, known: a reason" in told
    assert told.endswith("dqn seed 0, default: OTHER WEIGHTS; cut_lr at 40")
    assert "another" not in told
