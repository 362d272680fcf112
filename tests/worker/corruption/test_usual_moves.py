"""Where no bound is known: what moved incomparably farther than ever before is a warning."""

from __future__ import annotations

import torch

from supervisor.worker.corruption.usual_moves import LOOKS, UsualMoves, WeightAndCopy


class Weight:
    """A tensor that takes small steps between looks."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.moves = UsualMoves()
        self.live = torch.randn(64).to(dtype)

    def look(
        self, looks: int = 1, flip: float | None = None, *, all_of_it: bool = False
    ) -> list[str]:
        told: list[str] = []
        for _ in range(looks):
            kept = self.live.clone()
            self.live += 0.01 * torch.randn(64).to(kept.dtype)
            if flip is not None:
                self.live[slice(None) if all_of_it else 7] = flip
            told += self.moves.compare([WeightAndCopy("model.weight", self.live, kept)])
        return told


def test_one_element_that_leaps_is_told_once_and_what_it_was() -> None:
    weight = Weight()
    weight.look(LOOKS)

    told = weight.look(flip=1e20)
    again = weight.look(flip=1e30)

    assert len(told) == 1
    assert "model.weight: an element went from" in told[0]
    assert "to 1e+20" in told[0]
    assert again == []


def test_before_enough_looks_nothing_is_said() -> None:
    weight = Weight(torch.bfloat16)

    assert weight.look(LOOKS - 1) == []
    assert weight.look(flip=1e20) == []


def test_an_infinite_element_is_told() -> None:
    weight = Weight()
    weight.look(LOOKS)

    assert len(weight.look(flip=float("inf"))) == 1


def test_what_a_script_does_to_all_of_a_tensor_is_no_warning() -> None:
    weight = Weight()
    weight.look(LOOKS)

    assert weight.look(flip=1e6, all_of_it=True) == []
    assert weight.look(flip=0.0) == []
    assert weight.look(3) == []
