"""Two script states: what differs, what differs by nature, and what can be put back."""

from __future__ import annotations

import array
import collections
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import os
import random
import re
import sqlite3
import struct
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from supervisor.training_state.script_state import facts, inside_objects
from supervisor.training_state.script_state.facts import is_unseen
from supervisor.training_state.script_state.put_back import put_back
from supervisor.training_state.script_state.script_state import (
    RANDOM_NUMBERS,
    Nature,
    ScriptState,
    differences,
    is_another_order,
    reach_of,
    unpack,
)

NOTHING = Nature(ScriptState(), ScriptState())


class Shape:
    def __init__(self, sides: int) -> None:
        self.sides = sides


class Colliding(Shape):
    """In a set they lie in the order in which they were put there."""

    def __hash__(self) -> int:
        return 0


def take(variables: dict[str, Any]) -> ScriptState:
    return ScriptState.take(reach_of({"main": variables}))


def put_all_back(then: ScriptState, variables: dict[str, Any], held: dict[str, Any]) -> list[str]:
    """As a resume does it; returns what still differs."""
    for _ in range(6):
        now, places = ScriptState.with_places({"main": variables}, like=then)
        put_back(differences(then, now, NOTHING), places, held)
    return [
        str(one)
        for one in differences(
            then, ScriptState.with_places({"main": variables}, like=then)[0], NOTHING
        )
    ]


def test_a_census_is_read_as_it_was_written_with_the_earlier_one() -> None:
    first = take({"a": 1, "b": [2.5], "gone": 0})
    later = take({"a": 1, "b": [2.5, float("nan")], "c": "new"})

    assert unpack(later.pack(first)) == (first, later)
    with pytest.raises(ValueError, match="not a script state"):
        unpack(torch.zeros(10, dtype=torch.uint8))


def test_equal_variables_have_no_difference() -> None:
    def variables() -> dict[str, Any]:
        return {"x": float("nan"), "y": [Shape(3)], "r": random.Random(1), "t": torch.ones(2)}

    assert differences(take(variables()), take(variables()), NOTHING) == []


def test_numbers_texts_and_containers_are_put_back_and_those_who_hold_them_see_it() -> None:
    history: list[float] = []
    recorded = [1.0, 2.0]
    live = {
        "best": 9.0,
        "name": "b",
        "trainer": SimpleNamespace(history=history, extra=1),
        "alias": history,
        "queue": collections.deque([1], 3),
        "seen": {1},
        "generator": random.Random(5),
    }
    then = take(
        {
            "best": 0.5,
            "name": "a",
            "trainer": SimpleNamespace(history=recorded),
            "alias": recorded,
            "queue": collections.deque([1, 2, 3], 3),
            "seen": {1, 2},
            "generator": random.Random(4),
        }
    )

    left = put_all_back(then, live, {})

    assert left == []
    assert (live["best"], live["name"], history) == (0.5, "a", [1.0, 2.0])
    assert live["queue"] == collections.deque([1, 2, 3])
    assert not hasattr(live["trainer"], "extra")
    assert live["generator"].random() == random.Random(4).random()  # type: ignore[attr-defined]


def test_a_list_of_tensors_that_is_missing_is_built_from_the_checkpoints_tensors() -> None:
    recorded = {"kept": {"a": [torch.ones(2), torch.zeros(1)]}, "pairs": [(1, torch.ones(1))]}
    live: dict[str, Any] = {"kept": {}, "pairs": []}
    held = {"main.kept['a'][0]": torch.ones(2), "main.kept['a'][1]": torch.zeros(1)}

    left = put_all_back(take(recorded), live, held)

    assert [tensor.tolist() for tensor in live["kept"]["a"]] == [[1.0, 1.0], [0.0]]
    assert left == ["main.pairs[0] is missing"]  # a tuple cannot be filled


def test_tensors_of_equal_values_differ_where_only_one_wants_a_gradient() -> None:
    weight = torch.ones(3, requires_grad=True)

    def variables(*, wants: bool) -> dict[str, Any]:
        return {
            "leaf": torch.ones(3, requires_grad=wants),
            "computed": weight * 2 if wants else (weight * 2).detach(),
            "view": (weight * 2)[:2] if wants else torch.full((2,), 2.0),
            "large": torch.zeros(100_000, requires_grad=wants),
        }

    for recorded in (True, False):
        then = take(variables(wants=recorded))
        live = variables(wants=not recorded)
        assert len(differences(then, take(live), NOTHING)) == 4

        left = put_all_back(then, live, {})

        assert left == []
        assert {name: value.requires_grad for name, value in live.items()} == dict.fromkeys(
            live, recorded
        )


def test_a_missing_tensor_comes_back_with_its_wish_for_a_gradient() -> None:
    live: dict[str, Any] = {"kept": []}
    held = {"main.kept[0]": torch.ones(2)}

    left = put_all_back(take({"kept": [torch.ones(2, requires_grad=True)]}), live, held)

    assert left == []
    assert live["kept"][0].requires_grad


def test_an_object_that_is_missing_is_named_and_nothing_within_it() -> None:
    then = take({"cache": {"square": Shape(4)}, "n": 1})
    live: dict[str, Any] = {"cache": {}, "n": 1}

    left = put_all_back(then, live, {})

    assert len(left) == 1
    assert left[0].startswith("main.cache")


def test_what_differs_before_anything_was_trained_differs_by_nature() -> None:
    def variables(pid: int, folder: str, loss: float) -> dict[str, Any]:
        return {"pid": pid, "folder": folder, "file": f"{folder}/a.pt", "copy": pid, "loss": loss}

    first = [
        take(variables(pid, folder, 1.0))
        for pid, folder in ((51100, "/tmp/xyz"), (51200, "/tmp/abc"))
    ]
    nature = Nature(*first)
    then, now = take(variables(51100, "/tmp/xyz", 0.5)), take(variables(51200, "/tmp/abc", 0.7))
    then.facts["main.later"], now.facts["main.later"] = "= 51100", "= 51200"
    then.facts["main.log"], now.facts["main.log"] = '= "/tmp/xyz/log"', '= "/tmp/abc/log"'

    assert [one.path for one in differences(then, now, nature)] == ["main.loss"]


def test_a_small_number_that_differs_by_nature_excuses_no_other() -> None:
    nature = Nature(take({"restarts": 0, "done": False}), take({"restarts": 1, "done": True}))

    then, now = take({"best": 0, "stopped": False}), take({"best": 1, "stopped": True})

    assert [one.path for one in differences(then, now, nature)] == ["main.best", "main.stopped"]


def test_data_that_differ_before_the_training_differ_not_by_nature() -> None:
    def variables(seed: int) -> dict[str, Any]:
        chance = random.Random(seed)
        return {
            "order": chance.sample(range(20), 20),
            "names": [f"{n}.png" for n in chance.sample(range(20), 20)],
            "mean": [chance.random()],
            "files": {"train": f"{chance.random()}.csv"},
            "noise": torch.full((4,), chance.random()),
            "weights": np.full(4, chance.random()),
            "chance": chance,
            "began": chance.random(),
            "samples": [Shape(4)] * chance.randint(2, 9),
        }

    then, now = take(variables(1)), take(variables(2))

    found = {one.path for one in differences(then, now, Nature(then, now))}

    told = {"order", "names", "mean", "files", "noise", "weights", "chance", "samples"}
    assert found == {f"main.{name}" for name in told}
    then.facts[RANDOM_NUMBERS], now.facts[RANDOM_NUMBERS] = "here", "there"
    found = {one.path for one in differences(then, now, Nature(then, now))}
    assert found == {f"main.{name}" for name in (*told, "began")}


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ([0, 1, 2], [0, 2, 1], True),
        ([0, 1, 2], [0, 1], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([0.5, 1], [0.7, 1], False),
        ({"loss": 0.5}, {"loss": 0.7}, False),
        ("abc", "abd", False),
        (3, 4, False),
    ],
)
def test_another_order_of_a_container(then: Any, now: Any, *, expected: bool) -> None:
    (one,) = differences(take({"x": then}), take({"x": now}), NOTHING)

    assert is_another_order(one) == expected


def test_a_list_of_files_in_a_folder_of_another_name_differs_by_nature() -> None:
    def variables(folder: str) -> dict[str, Any]:
        return {"folder": folder, "files": [f"{folder}/{n}.png" for n in range(20)]}

    then, now = take(variables("/tmp/xyz")), take(variables("/tmp/abc"))

    assert differences(then, now, Nature(then, now)) == []


def test_what_only_one_had_before_the_training_says_nothing_of_what_both_have_later() -> None:
    nature = Nature(take({"i": 9}), take({}))

    assert differences(take({"i": 9}), take({}), nature) == []
    assert [one.path for one in differences(take({"i": 3}), take({"i": 4}), nature)] == ["main.i"]


def test_sets_are_equal_only_if_a_loop_over_them_has_the_same_order() -> None:
    one, other = {0, 8}, {8, 0}  # the same slot: the order is that of insertion
    assert list(one) != list(other)
    then, live = (
        take({"ids": one, "nested": [{"a": one}]}),
        {"ids": other, "nested": [{"a": other}]},
    )
    assert len(differences(then, take(live), NOTHING)) == 2

    assert put_all_back(then, live, {}) == []
    assert list(other) == list(one)


def test_a_set_of_objects_is_known_by_the_places_of_its_members_in_order() -> None:
    shapes, swapped = [Colliding(3), Colliding(4)], set[Colliding]()
    swapped.add(shapes[1])
    swapped.add(shapes[0])
    then = take({"shapes": shapes, "pool": set(shapes)})

    left = put_all_back(then, {"shapes": shapes, "pool": swapped}, {})

    first, last = "the object at main.shapes[0]", "the object at main.shapes[1]"
    assert left == [f"main.pool[0] is {last}, not {first}", f"main.pool[1] is {first}, not {last}"]


def test_state_that_only_a_set_or_a_key_leads_to_is_compared() -> None:
    def variables(sides: int) -> dict[str, Any]:
        return {"seen": {Shape(sides)}, "counts": {Shape(sides): 1}}

    then, live = take(variables(3)), variables(4)

    found = [one.path for one in differences(then, take(live), NOTHING)]

    assert set(found) == {"main.seen[0].sides", "main.counts.keys[0].sides"}
    assert put_all_back(then, live, {}) == []


def test_a_dictionary_of_objects_in_another_order_is_told_and_loses_nothing() -> None:
    shapes = {"a": Shape(3), "b": Shape(4)}
    then, live = take({"cache": shapes}), {"cache": dict(reversed(shapes.items()))}

    left = put_all_back(then, live, {})

    assert len(left) == 1
    assert left[0].startswith("main.cache is dict of 2")
    assert set(live["cache"].values()) == set(shapes.values())


def test_a_variable_that_names_another_object_is_told_and_nothing_of_either_is_changed() -> None:
    def variables(*, net: int, act: Any) -> dict[str, Any]:
        shapes = [Shape(3), Shape(4)]
        return {"shapes": shapes, "net": shapes[net], "act": act}

    live = variables(net=1, act=torch.tanh)
    shapes = list(live["shapes"])

    left = put_all_back(take(variables(net=0, act=torch.relu)), live, {})

    assert {"main.act", "main.shapes[0]", "main.shapes[1]"} <= {one.split()[0] for one in left}
    assert live["shapes"] == shapes
    assert [shape.sides for shape in shapes] == [3, 4]


def test_a_list_that_two_variables_name_is_one_list_again() -> None:
    history: list[float] = []
    live = {"history": history, "log": [0.5]}
    recorded = [1.0, 2.0]

    assert put_all_back(take({"history": recorded, "log": recorded}), live, {}) == []
    assert live["log"] is history


def test_an_object_of_its_own_does_not_come_back_as_another_place_of_a_known_one() -> None:
    averages = [1.0, 2.0]
    live = {"averages": averages, "best": averages}
    then = take({"averages": [1.0, 2.0], "best": [0.5, 0.5]})

    assert put_all_back(then, live, {}) == []
    assert (live["averages"], live["best"]) == ([1.0, 2.0], [0.5, 0.5])


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


class Exactly(float):
    """A number with a name of its own."""


def values_of(number: int) -> dict[str, Any]:
    """What hides its value from a walk over attributes and items."""
    context: contextvars.ContextVar[int] = contextvars.ContextVar("step")
    context.set(number)
    memory, seen = bytearray([number]), weakref.WeakKeyDictionary[Shape, int]()
    shape, local = Shape(4), threading.local()
    seen[shape] = number
    local.count = number
    return {
        "phase": Phase(number - 1),
        "share": fractions.Fraction(1, number),
        "mean": decimal.Decimal(number),
        "steps": range(number),
        "when": datetime.datetime(2020, 1, number),
        "memory": memory,
        "view": memoryview(memory),
        "context": context,
        "seen": seen,
        "shape": shape,
        "local": local,
        "objects": np.array([Shape(number), None], dtype=object),
    }


def test_values_that_hide_in_objects_of_pythons_library_are_put_back() -> None:
    then, live = take(values_of(2)), values_of(3)
    found = {re.split(r"[.\[]", one.path)[1] for one in differences(then, take(live), NOTHING)}
    assert found == live.keys() - {"shape"}

    assert put_all_back(then, live, {}) == []
    assert live["phase"] is Phase.WARM
    assert (live["share"], live["mean"]) == (fractions.Fraction(1, 2), decimal.Decimal(2))
    assert (live["view"][0], live["context"].get(), live["local"].count) == (2, 2, 2)
    assert live["seen"][live["shape"]] == 2
    assert live["objects"][0].sides == 2
    assert fractions.Fraction(1, 3) == fractions.Fraction(2, 6)  # the constant was not written on


def test_the_memory_of_gradient_compression_is_put_back() -> None:
    then, live = PowerSGDState(None), PowerSGDState(None)
    then.iter, then.error_dict[0] = 9, torch.ones(2)
    then.rng.randint(9)

    left = put_all_back(take({"s": then}), {"s": live}, {"main.s.error_dict[0]": torch.ones(2)})

    assert left == []
    assert (live.iter, live.error_dict[0].tolist()) == (9, [1.0, 1.0])
    assert live.rng.randint(10**6) == then.rng.randint(10**6)


def test_what_can_only_be_compared_is_told() -> None:
    calls = functools.lru_cache(lambda number: number)
    calls(1)
    places = np.arange(4)
    taken = places.flat
    next(taken)
    then = take({"calls": calls, "own": Exactly(0.5), "row": taken, "all": np.nditer(places)})
    calls(2)
    further = np.nditer(places)
    list(further)

    live = {"calls": calls, "own": Exactly(1), "row": places.flat, "all": further}
    left = put_all_back(then, live, {})

    told = {one.split()[0] for one in left}
    assert told == {"main.calls", "main.calls.returned", "main.own", "main.row", "main.all"}


class Best(NamedTuple):
    loss: float
    at: tuple[int, torch.Tensor]


def gathered(seed: float, number: int) -> dict[str, Any]:
    """What a forward or a hook gathers on its way."""
    rows = collections.defaultdict(list, {"a": [seed], **{str(n): [] for n in range(number)}})
    pairs = collections.defaultdict(lambda: [0, 0.0], {n: [n, seed] for n in range(number)})
    return {
        "rows": rows,
        "pairs": pairs,
        "both": (rows, number),
        "best": Best(seed, (number, torch.ones(2))),
        "row": array.array("d", [seed] * number),
        "took": datetime.timedelta(seconds=seed),
        "at": datetime.time(number),
    }


def test_what_a_left_out_forward_has_gathered_is_put_back() -> None:
    then, live = gathered(0.5, 3), gathered(0.25, 1)
    rows, pairs, row, kept = live["rows"], live["pairs"], live["row"], live["best"].at[1]

    assert put_all_back(take(then), live, {}) == []
    assert (live["rows"] is rows, live["pairs"] is pairs, live["row"] is row) == (True,) * 3
    assert (rows, pairs, row) == (then["rows"], then["pairs"], then["row"])
    assert (live["both"][0] is rows, live["both"][1]) == (True, 3)
    assert (rows["new"], pairs["new"]) == ([], [0, 0.0])
    assert (live["best"].loss, live["best"].at[0], live["best"].at[1] is kept) == (0.5, 3, True)
    assert isinstance(live["best"], Best)
    assert (live["took"], live["at"]) == (then["took"], then["at"])


def history(number: int) -> dict[str, Any]:
    losses = [0.5] * number
    curves = {"loss": losses, "all": [[losses], [0.25]], "own": [0.5] * number}
    return {"curves": curves, "losses": losses, "last": curves["all"][1]}


def test_a_part_of_a_container_that_another_variable_names_is_that_again() -> None:
    then, live = history(3), history(1)

    assert put_all_back(take(then), live, {}) == []
    live["losses"].append(0.125)
    live["last"].append(2.0)
    curves = live["curves"]
    assert curves["loss"] is curves["all"][0][0] is live["losses"]
    assert curves == {
        "loss": [*[0.5] * 3, 0.125],
        "all": [[curves["loss"]], [0.25, 2.0]],
        "own": [0.5] * 3,
    }


def test_a_part_that_was_an_object_of_its_own_is_one_again() -> None:
    then, live = history(2), history(2)
    then["losses"] = list(then["losses"])

    assert put_all_back(take(then), live, {}) == []
    live["losses"].append(1.0)
    assert live["curves"]["loss"] == [0.5, 0.5]


def test_a_dictionary_that_makes_what_no_name_tells_is_not_made_anew() -> None:
    shape = Shape(4)
    known, made = collections.defaultdict(int, a=1), gathered(0.5, 1)["pairs"]
    then = take({"all": {"shape": shape, "known": known, "made": made}})

    live: dict[str, Any] = {"all": {"shape": shape}}
    left = put_all_back(then, live, {})

    assert left == ["main.all['made'] is missing"]
    assert live["all"]["known"]["b"] == 0


def test_an_address_of_an_object_is_no_difference() -> None:
    def variables() -> dict[str, Any]:
        shape = Shape(3)
        return {
            "shape": shape,
            "known": {"id": id(shape), "of": shape},
            "by_id": {id(shape): shape},
            "names": {id(shape): "shape"},
            "seen": [id(shape)],
        }

    assert differences(take(variables()), take(variables()), NOTHING) == []


class Names(dict[str, Any]):
    """As SQLAlchemy calls what has no name of its own."""


def test_a_name_made_of_an_address_is_no_difference() -> None:
    def variables(shape: Shape, number: int) -> dict[str, Any]:
        return {"names": Names({f"{id(shape)} width": number, "10 width": 2})}

    one, other = Shape(3), Shape(3)
    then = take(variables(one, 1))

    assert differences(then, take(variables(other, 1)), NOTHING) == []
    found = differences(then, take(variables(other, 7)), NOTHING)
    assert [one.path for one in found] == ["main.names[#0]"]


def test_values_by_the_address_of_an_object_are_compared() -> None:
    shape, other = Shape(3), Shape(3)
    then, now = take({"s": shape, "n": {id(shape): 1}}), take({"s": other, "n": {id(other): 2}})

    assert [one.path for one in differences(then, now, NOTHING)] == ["main.n[#0]"]


def test_paths_and_temporary_files_are_called_otherwise_by_nature() -> None:
    def variables(stamp: int, folder: str) -> dict[str, Any]:
        made = tempfile.NamedTemporaryFile()  # noqa: SIM115
        return {"made": made, "out": Path(folder), "name": f"x_{stamp}", "stamp": stamp}

    first = take(variables(51100, "/runs/xyz")), take(variables(51200, "/runs/abc"))
    nature = Nature(*first)
    then, now = take({"best": Path("/runs/xyz/1.pt")}), take({"best": Path("/runs/abc/1.pt")})

    assert differences(*first, nature) == differences(then, now, nature) == []
    assert {("/runs/xyz", "/runs/abc"), ("51100", "51200")} <= set(nature.texts)


def test_a_path_is_put_back_as_a_whole() -> None:
    variables = {"best": Path("/runs/2.pt")}

    assert put_all_back(take({"best": Path("/runs/1.pt")}), variables, {}) == []
    assert variables == {"best": Path("/runs/1.pt")}


def test_a_layer_that_is_not_made_yet_is_told_like_any_other() -> None:
    script_state = ScriptState.take(
        reach_of({"main": {"model": torch.nn.LazyLinear(3), "count": 1}})
    )

    assert script_state.facts["main.count"] == "= 1"


class Sequence9:
    def __getitem__(self, place: int) -> int:
        if place >= 9:
            raise IndexError
        return place


_ITERATORS: dict[str, Callable[[], Any]] = {
    "list": lambda: iter(["a", "b", "c"] * 3),
    "tuple": lambda: iter((3,) * 9),
    "text": lambda: iter("abcdefghi"),
    "text beyond ASCII": lambda: iter("äbcdefghi"),
    "array": lambda: iter(np.arange(9)),
    "any sequence": lambda: iter(Sequence9()),
    "struct": lambda: struct.iter_unpack("B", bytes(range(9))),
    "huge range": lambda: iter(range(1 << 70, (1 << 70) + 9)),
    "range": lambda: iter(range(9)),
    "deque": lambda: iter(collections.deque(range(9))),
    "enumerate": lambda: enumerate(["a", "b", "c"] * 3),
    "count": lambda: itertools.count(5, 2),
    "cycle": lambda: itertools.cycle([0.1, 0.2, 0.3]),
}


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="those of itertools do not tell any more")
@pytest.mark.parametrize("kind", _ITERATORS)
@pytest.mark.parametrize("taken", [(0, 1), (0, 20), (1, 0), (2, 3), (2, 20), (20, 2)])
def test_an_iterator_that_does_not_stand_where_it_stood_is_told(
    kind: str, taken: tuple[int, int]
) -> None:
    """A forward that a replay left out took from it, or the like."""
    then, now, same = (_ITERATORS[kind]() for _ in range(3))
    for one, count in zip((then, now, same), (*taken, taken[1]), strict=True):
        collections.deque(itertools.islice(one, count), maxlen=0)

    assert put_all_back(take({"it": then}), {"it": now}, {})
    assert list(itertools.islice(now, 4)) == list(itertools.islice(same, 4))


def test_what_an_exhausted_iterator_went_over_keeps_its_content() -> None:
    rows, then = [1, 2, 3], iter([1, 2, 3])
    list(then)
    now = iter(rows)

    assert put_all_back(take({"it": then, "rows": [1, 2, 3]}), {"it": now, "rows": rows}, {})
    assert rows == [1, 2, 3]


@pytest.mark.parametrize("name", ["pairwise", "batched"])
def test_iterators_that_do_not_tell_are_seen_by_what_they_hold(name: str) -> None:
    if not hasattr(itertools, name):
        pytest.skip(f"this Python has no itertools.{name}")
    kind: Any = getattr(itertools, name)
    more = () if name == "pairwise" else (2,)
    then, now = kind(iter([1, 2, 3, 4, 5]), *more), kind(iter([1, 2, 3, 4, 5]), *more)
    next(then)

    assert differences(take({"it": then}), take({"it": now}), NOTHING)
    next(now)
    assert not differences(take({"it": then}), take({"it": now}), NOTHING)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="one that tells, as any sequence's does")
def test_an_iterator_over_memory_is_out_of_sight() -> None:
    assert is_unseen(take({"it": iter(memoryview(b"abc"))}).facts["main.it"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: re.finditer("a", "aaa"),
        lambda: sqlite3.connect(":memory:").execute("select 1"),
        lambda: os.scandir("."),
    ],
)
def test_an_iterator_of_c_code_is_out_of_sight_where_a_model_leads_to_it(
    make: Callable[[], Any],
) -> None:
    model, data = torch.nn.Linear(1, 1), SimpleNamespace()
    model.taken, data.taken = make(), make()

    of_model = take({"model": model}).facts.values()
    of_data = take({"data": data, "model": torch.nn.Linear(1, 1)}).facts.values()

    assert any(map(is_unseen, of_model))
    assert not any(map(is_unseen, of_data))
    for one in (model.taken, data.taken):
        getattr(one, "close", int)()


def test_an_iterator_that_hides_its_place_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(iterator: Any) -> None:  # those of itertools, from Python 3.14 on
        raise TypeError(f"cannot pickle {type(iterator).__name__!r} object")

    for module in (facts, inside_objects):
        monkeypatch.setattr(module, "position", hidden)

    found = take({"it": itertools.islice([1, 2, 3], 2), "other": [1]}).facts

    assert {path: is_unseen(fact) for path, fact in found.items()} == {
        "main.it": True,
        "main.other": False,
    }
