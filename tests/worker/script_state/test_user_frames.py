"""What loops go over that no variable holds is found in the memory of the function's stack."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import supervisor
from supervisor.training_state.script_state.reach import Reach
from supervisor.worker.script_state.user_frames import held_by_blocks, user_frames


class Lazy(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        raise ImportError(f"{name} would need a package that is not here")


def test_a_lazy_module_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lazy_for_a_test", Lazy("lazy_for_a_test"))

    frames = user_frames()

    assert "main" in frames
    assert "lazy_for_a_test" not in frames


def test_the_main_module_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__="/somewhere/script.py", loss=0.5)
    for name in ("__main__", "__mp_main__"):  # as `multiprocessing` leaves it
        monkeypatch.setitem(sys.modules, name, main)

    frames = user_frames()

    assert frames["main"] is main.__dict__
    assert "__mp_main__" not in frames


def test_our_own_code_is_known_behind_a_link(tmp_path: Path) -> None:
    """Of an editable install, or a home folder that is a link to another disk."""
    link = tmp_path / "link"
    link.symlink_to(Path(supervisor.__file__).parents[1])
    text = (
        f"import sys; sys.path.insert(0, {str(link)!r})\n"
        "from supervisor.training_state.script_state import inside_process\n"
        "assert inside_process.__file__.startswith(inside_process._OURS), inside_process._OURS\n"
    )

    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr


X = torch.arange(6.0)


class Batches:
    def __init__(self, values: torch.Tensor) -> None:
        self._waiting = list(values)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> torch.Tensor:
        if not self._waiting:
            raise StopIteration
        return self._waiting.pop()


def minibatches(values: torch.Tensor) -> Iterator[torch.Tensor]:
    centred = values - values.mean()
    yield from centred


def found(frame: FrameType) -> dict[str, list[float]]:
    """Returns number of the loop → values of the tensors that it holds, each memory once."""
    held = held_by_blocks([("f", frame)], {"main": {"X": X}, "f": frame.f_locals})
    return {name: _values(iterator) for name, iterator in held.items()}


def _values(iterator: Any) -> list[float]:
    reach: Mapping[str, Any] = {"": {"": iterator}}
    tensors = [p.value for p in Reach(reach) if isinstance(p.value, torch.Tensor)]
    return sorted({value for tensor in tensors for value in tensor.flatten().tolist()})


def test_iterators_of_nested_loops_are_found_by_their_number() -> None:
    seen = []
    for outer, _ in zip((X + 1).split(3), (X + 2).split(3), strict=True):
        for _, _inner in enumerate(outer * 10):
            seen.append(found(sys._getframe()))
            break

    assert [list(one) for one in seen] == [["f 0", "f 1"]] * 2
    assert seen[0]["f 0"] == [1, 2, 3, 4, 5, 6, 7]
    assert [one["f 1"] for one in seen] == [[10, 20, 30], [40, 50, 60]]


def test_generators_and_iterators_of_a_class_are_found() -> None:
    for _ in minibatches(X):
        of_generator = found(sys._getframe())
        break
    for _ in Batches(X + 0.5):
        of_class = found(sys._getframe())
        break

    assert of_generator["f 0"] == [-2.5, -1.5, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5]
    assert of_class["f 0"] == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_what_a_variable_leads_to_and_numbers_are_left_out() -> None:
    parts = (X + 1).split(3)
    batches = minibatches(X)
    seen = []

    for _, _ in zip(parts, range(2), strict=True):
        seen.append(found(sys._getframe()))
    for _ in batches:
        seen.append(found(sys._getframe()))
    for _ in [2 * number for number in range(3)]:
        seen.append(found(sys._getframe()))
    seen.append(found(sys._getframe()))

    assert all(one == {} for one in seen)


def test_what_an_ended_loop_has_left_on_the_stack_is_not_taken() -> None:
    for _ in (X + 1).split(2):
        pass
    assert [float(row.sum()) for row in (X + 2).split(2)]

    assert found(sys._getframe()) == {}


def gathered(held: dict[str, list[float]]) -> list[list[float]]:
    return [values for name, values in held.items() if "below" in name]


def test_what_a_comprehension_has_gathered_so_far_is_found() -> None:
    seen: list[list[list[float]]] = []

    def look(value: torch.Tensor) -> torch.Tensor:
        seen.append(gathered(found(sys._getframe(1))))
        return value + 1

    [look(one) for one in X[:3]]
    {number: look(X[number]) for number in range(3)}
    [look(one * factor) for one in X[1:3] for factor in (10, 20)]

    assert seen[:3] == [[], [[1]], [[1, 2]]]
    assert seen[3:6] == [[], [[1]], [[1, 2]]]
    assert seen[6:] == [[], [[11]], [[11, 21]], [[11, 21]]]


def test_a_variable_with_the_name_of_a_comprehensions_is_found_beside_it() -> None:
    def look() -> int:
        held = found(sys._getframe(1))
        seen.append([value for values in held.values() for value in values])
        return 0

    seen: list[list[float]] = []
    one = X + 100
    [look() for one in range(2)]

    assert one.tolist() == [100, 101, 102, 103, 104, 105]
    if sys.version_info >= (3, 12):  # before, it stays a variable of the function around
        assert seen == [one.tolist()] * 2


def test_no_list_that_a_loop_goes_over_is_taken_for_gathered() -> None:
    for _ in [X + 1, X + 2]:
        held = found(sys._getframe())
        break

    assert gathered(held) == []
