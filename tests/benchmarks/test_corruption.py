"""The benchmark of flipped bits: which bits flip, and what its table says."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.corruption import BITS, cases
from benchmarks.corruption_table import tell_healthy, tell_missed, tell_results
from benchmarks.flipped_models import MODELS, OPTIMIZERS
from benchmarks.flipped_training import TARGETS, flip_bit

FOUND = {"tensor": "w", "step": 110, "rule": "moved", "healed": "in_place"}


def row(arm: str, *, number: int = 0, hurt: bool = False, **given: Any) -> dict[str, Any]:
    flip = {"target": "weight", "bit": 30, "step": 100, "seed": number}
    case = {"model": "mlp", "optimizer": "SGD", "dtype": "float32", "seed": 0, "flip": flip}
    nothing = {"found": [], "treated": [], "steps_lost": 0, "how": "", "struck": None}
    return {**case, **nothing, "arm": arm, "hurt": hurt, "ratio": 2.0 if hurt else 1.0, **given}


def arms(number: int = 0, **ours: Any) -> list[dict[str, Any]]:
    others = [row(arm, number=number, hurt=True) for arm in ("alone", "clip", "spike rule")]
    return [*others, row("supervised", number=number, **ours)]


def test_every_bit_of_every_kind_of_memory_flips_once_and_all_models_are_struck() -> None:
    made = cases(448, seed=0)

    places = {(case["flip"]["target"], case["dtype"], case["flip"]["bit"]) for case in made[:336]}
    assert len(places) == 336 == len(TARGETS) * sum(BITS.values())
    assert {case["model"] for case in made} == set(MODELS)
    assert {case["optimizer"] for case in made} == set(OPTIMIZERS)
    assert all(case["flip"]["bit"] >= BITS[case["dtype"]] - 4 for case in made[336:])


def test_a_flip_changes_one_bit_and_is_no_counted_write() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.ones(5, dtype=dtype)
        writes = tensor._version
        flip_bit(tensor, 3, BITS[str(dtype).removeprefix("torch.")] - 1)
        assert tensor.tolist() == [1.0, 1.0, 1.0, -1.0, 1.0]
        assert tensor._version == writes


def test_what_is_healed_and_what_hurts_is_counted() -> None:
    healed = arms(0, found=[FOUND], steps_lost=0)
    missed = arms(1, hurt=True)

    line = tell_results([*healed, *missed]).splitlines()[2]

    assert line == "| weight | 2 | 2 | 2 | 2 | **1** | 1 | 1 | 0 | 0 | 1 of 2 | 0 |"
    assert "HURT: weight bit 30" in tell_missed([*healed, *missed])


def test_a_case_that_was_not_run_in_all_arms_is_left_out() -> None:
    assert (
        tell_results([*arms(0), row("alone", number=1)]).splitlines()[2].startswith("| weight | 1 ")
    )


def test_what_is_called_corrupted_before_the_flip_is_a_false_alarm() -> None:
    early = arms(0, found=[{**FOUND, "step": 90}])

    assert tell_missed(early).startswith("FALSE: weight bit 30")
    assert "| 0 | 0 | 0 | 0 |" in tell_results(early)


def test_false_alarms_of_healthy_runs_are_named() -> None:
    calm = {"found": [], "treated": [], "code": 0}

    told = tell_healthy([calm, {**calm, "found": [FOUND]}], 2000)

    assert "2 trainings, 4000 steps: 1 false alarms, 0 treatments" in told
    assert "FALSE" in told
