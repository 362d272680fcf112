"""Tensors and arrays between the ends of long containers are entered, or some of them compared."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from supervisor.training_state.script_state.inside_containers import COMPARED, ENTERED, LONG
from supervisor.training_state.script_state.reach import Reach

MIDDLE = LONG // 2


def places(value: Any) -> dict[str, Any]:
    return {place.path: place for place in Reach({"main": {"x": value}})}


def test_tensors_and_arrays_within_rows_can_be_put_back() -> None:
    rows: list[Any] = [object() for _ in range(LONG + 1)]
    rows[MIDDLE : MIDDLE + 5] = [
        torch.ones(1),
        (1, torch.ones(2)),
        [np.ones(3)],
        {"a": torch.ones(4)},
        SimpleNamespace(b=torch.ones(5)),
    ]

    found = places(rows)
    for path, place in found.items():
        if isinstance(place.value, (torch.Tensor, np.ndarray)) and place.replace is not None:
            place.replace(path)

    assert rows[MIDDLE] == f"main.x[{MIDDLE}]"
    assert f"main.x[{MIDDLE + 1}][1]" in found
    assert rows[MIDDLE + 2] == [f"main.x[{MIDDLE + 2}][0]"]
    assert rows[MIDDLE + 3] == {"a": f"main.x[{MIDDLE + 3}]['a']"}
    assert rows[MIDDLE + 4].b == f"main.x[{MIDDLE + 4}]['b']"


def test_of_a_dictionary_and_a_deque_too() -> None:
    by_name = {f"n{n}": torch.ones(1) for n in range(LONG + 1)}

    assert f"main.x['n{MIDDLE}']" in places(by_name)
    assert f"main.x[{MIDDLE}]" in places(deque(by_name.values()))


def test_of_too_many_some_are_compared() -> None:
    many = [torch.zeros(1) for _ in range(LONG + ENTERED)]
    earlier = places(many)["main.x.middle"].value
    for value in many:
        value += 1

    later = places(many)["main.x.middle"].value

    assert earlier[0] == later[0] > ENTERED
    assert earlier[1] != later[1]
    assert len(places(many)) < LONG + COMPARED
