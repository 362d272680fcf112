"""What ranks tell each other as objects of Python comes off the tape in a replay."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from supervisor.errors import ReplayError
from supervisor.storage.steps.tape import TapeWriter
from supervisor.storage.steps.tape_reader import TapeReader
from supervisor.worker.recording.told_objects import note_objects, recorded_objects


@dataclasses.dataclass
class Figures:
    loss: float
    seen: tuple[int, int]
    rows: torch.Tensor


class Opaque:
    pass


def _replayed(
    path: Path, objects: list[Any], *, all_have: bool
) -> tuple[Any, list[Any], list[str]]:
    tape = TapeWriter(path)

    note_objects(tape, objects, 1, all_have=all_have)
    tape.close()
    again: list[Any] = [None] * len(objects)
    asked: list[str] = []
    result = recorded_objects(
        TapeReader(path, end=path.stat().st_size), again, lambda: asked.append("again")
    )
    return result, again, asked


def test_plain_values_data_classes_and_tensors_come_back(tmp_path: Path) -> None:
    told = [{"rank": 0, "best": None}, Figures(0.1 + 0.2, (3, 4), torch.arange(3)), float("inf")]

    result, again, asked = _replayed(tmp_path / "tape", told, all_have=False)

    assert (result, asked) == (1, [])
    assert again[0] == told[0]
    assert isinstance(again[1], Figures)
    assert (again[1].loss, again[1].seen) == (0.1 + 0.2, (3, 4))
    assert again[1].rows.tolist() == [0, 1, 2]
    assert again[2] == float("inf")


def test_what_has_no_plain_form_is_exchanged_again_where_all_ranks_have_it(tmp_path: Path) -> None:
    _, _, asked = _replayed(tmp_path / "tape", [Opaque()], all_have=True)

    assert asked == ["again"]


def test_what_one_rank_alone_has_and_cannot_be_recorded_ends_the_replay(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="Opaque"):
        _replayed(tmp_path / "tape", [Opaque()], all_have=False)
