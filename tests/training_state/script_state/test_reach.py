"""What the walk over a script's variables finds, and how it can be written."""

from __future__ import annotations

import asyncio
import functools
import itertools
import queue
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Annotated, Any, Generic, Literal, TypeVar, overload

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from supervisor.training_state.script_state import reach
from supervisor.training_state.script_state.inside_containers import LONG
from supervisor.training_state.script_state.inside_objects import FrameVariables
from supervisor.training_state.script_state.reach import Reach


class Slotted:
    __slots__ = ("best", "unset")

    def __init__(self) -> None:
        self.best = 0.5


class Meter:
    seen = 3

    def __init__(self) -> None:
        self.total = 1.0
        self.myself = self


def counting() -> Iterator[int]:
    drawn = 7
    yield drawn
    yield drawn + 1


def paths(**variables: Any) -> dict[str, Any]:
    return {place.path: place.value for place in Reach({"main": variables})}


def test_objects_slots_classes_and_cycles_are_entered_once() -> None:
    found = paths(meter=Meter(), kind=Meter, slotted=Slotted())

    assert found["main.meter.total"] == 1.0
    assert found["main.kind.seen"] == 3
    assert found["main.slotted.best"] == 0.5
    assert "main.meter.myself" not in found


def test_closures_partials_methods_and_generators_are_entered() -> None:
    count = 5

    def inner() -> int:
        return count

    waiting = counting()
    next(waiting)
    found = paths(f=inner, p=functools.partial(print, [1]), m=Meter().__init__, g=waiting)  # type: ignore[misc]

    assert found["main.f.count"] == 5
    assert found["main.p.args"] == ([1],)
    assert found["main.m.self.total"] == 1.0
    assert found["main.g.drawn"] == 7


def test_an_iterator_says_where_it_stands_and_is_not_moved() -> None:
    letters, pairs = iter(["a", "b"]), enumerate(["a", "b"])
    next(letters), next(pairs)

    found = paths(n=letters, e=pairs)

    assert found["main.n.position[1]"] == 1
    assert found["main.e.position[1]"] == 1
    assert (next(letters), next(pairs)) == ("b", (1, "b"))


def test_the_place_in_a_range_is_told_by_every_python() -> None:
    numbers = iter(range(10))
    places = [paths(n=numbers) for _ in range(3) if next(numbers) >= 0]

    told = [sorted((k, str(v)) for k, v in one.items() if "position" in k) for one in places]

    assert told[0] != told[1] != told[2] != told[0]


@pytest.mark.filterwarnings("error")
def test_reading_the_place_in_itertools_warns_of_nothing() -> None:
    filters = list(warnings.filters)

    found = paths(n=itertools.count(5), c=itertools.cycle([7]))

    assert found["main.n.position[0]"] == 5
    assert warnings.filters == filters


def test_a_generator_that_waits_shows_where_its_loops_stand() -> None:
    waiting = (number for number in [7, 8, 9])
    before = {p: v for p, v in paths(g=waiting).items() if p.endswith("position[1]")}
    next(waiting), next(waiting)

    after = {p: v for p, v in paths(g=waiting).items() if p.endswith("position[1]")}

    assert sorted(after.values()) == [2]
    assert after != before


def test_hooks_of_a_module_are_entered_and_torchs_own_are_not() -> None:
    model, kept = nn.Linear(2, 2), Meter()
    model.register_forward_hook(lambda *_: kept.seen)
    nn.utils.parametrizations.weight_norm(model)

    found = paths(model=model)

    assert any(path.endswith("kept.total") for path in found)
    assert not any("parametrizations" in path and "hooks" in path for path in found)


def test_of_a_model_only_tensors_are_entered_to_which_something_belongs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[str] = []

    def of_tensor(path: str, tensor: torch.Tensor) -> Iterator[Any]:
        entered.append(path)
        return own(path, tensor)

    own = reach.of_tensor
    monkeypatch.setattr(reach, "of_tensor", of_tensor)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    first, second = Meter(), Meter()
    model[0].weight.average = Meter()
    model[1].weight.register_hook(lambda gradient: first.total * gradient)
    model[2].weight.register_post_accumulate_grad_hook(lambda parameter: setattr(second, "x", 1))
    found = paths(model=model, sparse=torch.eye(2).to_sparse())

    assert len(entered) == 4
    assert found["main.model.0.weight.average.total"] == 1.0
    assert sum(path.endswith(".total") for path in found) == 3
    assert any(path.startswith("main.sparse._values") for path in found)


def test_what_objects_of_c_code_hold_is_entered() -> None:
    waiting: queue.SimpleQueue[Meter] = queue.SimpleQueue()
    waiting.put(Meter())
    found = paths(
        draw=random.Random(1).random,
        step=itertools.count(5).__next__,
        asked=iter(Meter().__init__, 1),  # type: ignore[misc, call-overload]
        waiting=waiting,
        keys={"first": 1}.keys(),
        __own=3,
        __name__=4,
        __compiled_fn_3_c9154926=5,
    )

    assert isinstance(found["main.draw.self"], random.Random)
    assert found["main.step.self.position[0]"] == 5
    assert found["main.asked.position[0].self.total"] == 1.0
    assert 1.0 in [value for path, value in found.items() if path.startswith("main.waiting.")]
    assert (("first", 1),) in found.values()
    assert found["main.__own"] == 3
    assert not {"main.__name__", "main.__compiled_fn_3_c9154926"} & found.keys()


def test_results_that_a_cache_holds_are_entered_and_its_own_dictionary_is_not() -> None:
    without_limit, three = (functools.lru_cache(size)(lambda _: Meter()) for size in (None, 3))
    without_limit(5), three(6)

    found = paths(a=without_limit, b=three)

    assert [path for path, value in found.items() if value == 1.0] == [
        path for path in found if path.endswith(".total")
    ]
    assert sum(path.endswith(".total") for path in found) == 2
    assert not any(isinstance(value, dict) for value in found.values())


@pytest.mark.parametrize("wrap", [staticmethod, classmethod, property, functools.cached_property])
def test_wrapped_functions_of_a_class_are_entered(wrap: Any) -> None:
    kept = Meter()

    class Teacher:
        soft = wrap(lambda *_: kept)

    assert kept in paths(kind=Teacher).values()


def test_an_asynchronous_generator_shows_its_variables() -> None:
    async def rows(weights: list[float]) -> AsyncIterator[float]:
        for weight in weights:
            yield weight

    waiting = rows([0.5, 0.25])
    asyncio.run(waiting.__anext__())  # type: ignore[arg-type]

    found = paths(rows=waiting)

    assert found["main.rows.weight"] == 0.5
    assert found["main.rows.loops[0].position[1]"] == 1


def test_threads_locks_and_files_are_left_alone() -> None:
    found = paths(t=threading.Thread(), lock=threading.Lock(), out=sys.stdout)

    assert sorted(found) == ["main.lock", "main.out", "main.t"]


def test_what_tells_of_types_keeps_nothing() -> None:
    T = TypeVar("T")

    class Mean(Generic[T]):
        def __init__(self) -> None:
            self.total = 1.0

    found = paths(form=Literal, alias=Annotated[int, 3], check=overload, mean=Mean())

    assert set(found) == {"main.form", "main.alias", "main.check", "main.mean", "main.mean.total"}


def test_plain_containers_are_one_place_and_long_ones_of_objects_show_their_ends() -> None:
    reach = Reach({"main": {"log": [0.5] * 5000, "memory": deque([Meter() for _ in range(2000)])}})

    found = [place.path for place in reach]

    assert "main.log[0]" not in found
    assert "main.memory[1999].total" in found
    assert "main.memory[1000].total" not in found
    assert len([p for p in found if p.startswith("main.memory[")]) < 2 * LONG
    assert reach.out_of_reach == 1500


def test_what_hides_its_state_is_counted() -> None:
    reach = Reach({"main": {"lock": threading.Lock(), "tensor": torch.zeros(1)}})

    assert len(list(reach)) == 2
    assert reach.out_of_reach == 1


def test_every_kind_of_place_can_be_written() -> None:
    total = 1

    def inner() -> int:
        return total

    variables = {
        "item": [Meter()],
        "named": {"a": Meter()},
        "own": SimpleNamespace(x=1),
        "f": inner,
        "slotted": Slotted(),
    }
    places = {place.path: place for place in Reach({"main": variables})}
    for path in (
        "main.item[0]",
        "main.named['a']",
        "main.own.x",
        "main.f.total",
        "main.slotted.best",
    ):
        replace = places[path].replace
        assert replace is not None
        replace(9)

    assert variables["item"] == [9]
    assert variables["named"] == {"a": 9}
    assert variables["own"].x == 9  # type: ignore[attr-defined]
    assert inner() == 9
    assert variables["slotted"].best == 9  # type: ignore[attr-defined]


def test_a_function_goes_on_with_the_value_that_was_written_into_it() -> None:
    def boundary() -> None:
        variables = FrameVariables(sys._getframe(1))
        variables["best"] = 0.25
        variables["later"] = "new"

    def train() -> tuple[float, str]:
        best = 1.0
        boundary()
        if best > 10:
            later = "never"
        return best, later

    assert train() == (0.25, "new")


def test_a_generator_that_waits_goes_on_with_the_value_that_was_written_into_it() -> None:
    waiting = counting()
    next(waiting)
    places = {place.path: place for place in Reach({"main": {"g": waiting}})}

    places["main.g.drawn"].replace(40)  # type: ignore[misc]

    assert next(waiting) == 41


def test_iterators_of_itertools_are_entered() -> None:
    meter = Meter()
    batches = itertools.cycle([meter, Meter()])
    next(batches)

    assert any(path.startswith("main.b.position") for path in paths(b=batches))


def test_what_workers_have_under_way_is_not_the_scripts() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8))
    batches = iter(torch.utils.data.DataLoader(data, 2, num_workers=1))
    next(batches)

    found = {place.path: place for place in Reach({"main": {"batches": batches}})}

    assert found["main.batches._num_yielded"].value == 1
    assert "main.batches._task_info" not in found
    assert found["main.batches._rcvd_idx"].replace is None


def test_what_lies_on_a_parameter_is_reached() -> None:
    model = torch.nn.Linear(1, 1)
    model.weight.average = torch.ones(1)  # type: ignore[assignment]

    found = {place.path: place for place in Reach({"main": {"model": model}})}

    assert found["main.model.weight.average"].value is model.weight.average


def test_connections_named_by_the_process_are_no_state() -> None:
    found = paths(data=SimpleNamespace(_IterableDataset__hffs_cache={"by pid": 1}, epoch=2))

    assert found["main.data.epoch"] == 2
    assert "main.data._IterableDataset__hffs_cache" not in found


def test_the_state_of_ddps_communication_hooks_is_entered_and_written() -> None:
    power = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=4)
    power.error_dict[0] = torch.ones(3)
    model = nn.Linear(2, 2)
    model._comm_hooks = [(powerSGD_hook, power)]  # as DDP keeps what is registered with it
    averager = PeriodicModelAverager(3, process_group=object())  # it asks for no running group
    found = {p.path: p for p in Reach({"main": {"model": model, "averager": averager}})}

    held = found["main.model._comm_hooks[0][1].error_dict[0]"]
    count = found["main.model._comm_hooks[0][1].iter"]
    assert held.value is power.error_dict[0]
    assert found["main.model._comm_hooks[0][1].rng"].value is power.rng
    assert count.replace is not None
    count.replace(7)
    assert (power.iter, found["main.averager.step"].value) == (7, 0)


def test_results_of_torchs_tasks_are_found() -> None:
    done: torch.futures.Future[list[float]] = torch.futures.Future()
    failed: torch.futures.Future[int] = torch.futures.Future()
    half = done.then(lambda future: future.value()[0] / 2)
    done.set_result([0.5])
    failed.set_exception(ValueError("lost"))

    found = paths(done=done, failed=failed, half=half, waiting=torch.futures.Future())

    assert found["main.done.value"] == [0.5]
    assert found["main.half.value"] == 0.25
    assert not found.keys() & {"main.failed.value", "main.waiting.value"}
