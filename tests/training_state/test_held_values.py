from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from supervisor.training_state.held_values import find_held, put_back, stamps, storages
from supervisor.training_state.plain_form import to_plain
from supervisor.training_state.script_state.inside_objects import FrameVariables
from supervisor.training_state.script_state.script_state import ScriptState, reach_of


@dataclass
class Memory:
    hidden: torch.Tensor


class Trainer:
    def __init__(self) -> None:
        self.running = torch.zeros(2)
        self.history = deque([torch.ones(1)])
        self.myself = self


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.state = torch.zeros(2)


def variables() -> dict[str, Any]:
    return {
        "trainer": Trainer(),
        "memory": Memory(torch.zeros(3)),
        "averages": {"w": torch.zeros(2), "n": [np.zeros(2), (torch.zeros(1),)]},
        "nothing": None,
        "name": "run",
        "__builtins__": {"hidden": torch.zeros(1)},
    }


def test_values_are_found_under_the_path_that_leads_to_them() -> None:
    held = find_held({"main": variables()}, set())

    assert set(held) == {
        "main.trainer.running",
        "main.trainer.history[0]",
        "main.memory.hidden",
        "main.averages['w']",
        "main.averages['n'][0]",
        "main.averages['n'][1][0]",
    }


def test_parameters_are_left_out_and_average_models_are_not() -> None:
    model, average = Recurrent(), Recurrent()
    frames = {"main": {"model": model, "average": average, "view": model.layer.weight[0]}}

    held = find_held(frames, storages(model.parameters()))

    assert set(held) == {
        "main.model.state",
        "main.average.layer.weight",
        "main.average.layer.bias",
        "main.average.state",
    }


def test_values_go_back_in_place_so_that_aliases_see_them() -> None:
    frames = {"main": variables()}
    alias = frames["main"]["averages"]["w"]
    held = {path: to_plain(v, path, []) for path, v in find_held(frames, set()).items()}
    saved = {p: v.clone() + 1 if isinstance(v, torch.Tensor) else v for p, v in held.items()}
    fresh = {"main": frames["main"]}

    problems = put_back(fresh, saved)

    assert problems == []
    assert alias.tolist() == [1.0, 1.0]


def test_arrays_go_back_in_place() -> None:
    array = np.zeros(2)
    saved = {"main.a": to_plain(np.ones(2), "a", [])}

    problems = put_back({"main": {"a": array}}, saved)

    assert problems == []
    assert array.tolist() == [1.0, 1.0]


def test_another_shape_or_none_is_replaced_where_it_lies() -> None:
    frames: dict[str, Any] = {"main": {"h": None, "d": {"k": torch.zeros(1)}, "t": (None,)}}
    saved = {
        "main.h": torch.ones(2),
        "main.d['k']": torch.ones(3),
        "main.t[0]": torch.ones(1),
        "main.gone": torch.ones(1),
    }

    problems = put_back(frames, saved)

    assert frames["main"]["h"].tolist() == [1.0, 1.0]
    assert frames["main"]["d"]["k"].shape == (3,)
    assert [problem.split(":")[0] for problem in problems] == ["main.t[0]", "main.gone"]


def test_static_values_are_left_out_until_they_change() -> None:
    data, average = torch.zeros(4), torch.zeros(2)
    frames = {"main": {"data": data, "average": average, "array": np.zeros(2)}}
    known = stamps(find_held(frames, set()))
    average.data.mul_(0.9).add_(1.0)  # does not move the version counter

    held = find_held(frames, set(), known=known)

    assert list(held) == ["main.average"]


def test_what_exceeds_the_limit_is_named() -> None:
    left_out: list[str] = []

    held = find_held(
        {"main": {"large": torch.zeros(100), "small": torch.zeros(1)}},
        set(),
        max_bytes=100,
        left_out=left_out,
    )

    assert list(held) == ["main.small"]
    assert left_out == ["main.large: 400 bytes exceed the limit"]


def test_a_local_variable_of_a_suspended_function_is_replaced() -> None:
    def supervisor_boundary() -> list[str]:
        return put_back(
            {"users_loop": FrameVariables(sys._getframe(1))}, {"users_loop.hidden": torch.ones(2)}
        )

    def users_loop() -> tuple[list[str], Any]:
        hidden = None
        problems = supervisor_boundary()
        return problems, hidden

    problems, hidden = users_loop()

    assert problems == []
    assert hidden.tolist() == [1.0, 1.0]


def test_what_might_read_files_or_raises_is_not_asked() -> None:
    class OnDisk(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError("asked")

        __iter__ = __len__ = __getitem__  # type: ignore[assignment]

    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            if name == "__class__":
                return Hostile
            raise OSError(name)

    held = find_held({"main": {"d": OnDisk(), "h": Hostile(), "t": torch.zeros(1)}}, set())

    assert list(held) == ["main.t"]


def test_long_logs_are_not_walked() -> None:
    held = find_held({"main": {"losses": [0.0] * 5000, "t": torch.zeros(1)}}, set())

    assert list(held) == ["main.t"]


def test_of_a_librarys_object_what_it_holds_itself_is_saved_and_put_back() -> None:
    def average(value: float) -> SimpleNamespace:
        weights = [torch.full((2,), value), torch.full((3,), value)]
        inner = SimpleNamespace(hidden=torch.zeros(1))
        return SimpleNamespace(total=torch.tensor(value), weights=weights, inner=inner, name="ema")

    frames = {"main": {"ema": average(1.0)}}
    known = stamps(find_held(frames, set()))
    frames["main"]["ema"].total += 1
    frames["main"]["ema"].weights[1].mul_(3)
    found = find_held(frames, set(), known=known)
    saved = {path: to_plain(value, path, []) for path, value in found.items()}
    resumed = {"main": {"ema": average(0.0)}}

    assert set(saved) == {"main.ema.total", "main.ema.weights[1]"}
    assert put_back(resumed, saved) == []
    assert resumed["main"]["ema"].total.item() == 2
    assert resumed["main"]["ema"].weights[1].tolist() == [3, 3, 3]


def test_the_gradient_of_a_leaf_that_nothing_else_saves_comes_back() -> None:
    weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    (3 * weight).sum().backward()
    other.grad = torch.ones(2)

    held = {
        path: value.clone()
        for path, value in find_held({"main": {"w": weight, "o": other}}, storages([other])).items()
    }
    weight.grad = None
    left = put_back({"main": {"w": weight, "o": other}}, held)

    assert (set(held), left) == ({"main.w", "main.w.grad"}, [])
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]


def test_what_ranks_still_exchange_is_waited_for_and_named_where_it_does_not_come() -> None:
    sum_, done, never = torch.zeros(2), torch.futures.Future[None](), torch.futures.Future[None]()

    def come() -> None:
        sum_.fill_(3.0)
        done.set_result(None)

    threading.Timer(0.1, come).start()
    frames, left_out = {"main": {"waits": [done], "sum": sum_}}, list[str]()

    found = find_held(frames, set(), left_out=left_out, wait_s=30)

    assert left_out == []
    assert found["main.sum"].tolist() == [3.0, 3.0]
    find_held({"main": {"waits": (never,)}}, set(), left_out=left_out, wait_s=0.01)
    assert left_out == ["main.waits[0] is an exchange between ranks that is still under way"]


def test_what_came_of_tasks_is_saved_and_put_back_before_the_script_asks_for_it() -> None:
    def tasks(value: float) -> dict[str, Any]:
        told: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        half = told.then(lambda future: future.value() / 2)
        told.set_result(torch.full((2,), value))
        parts: torch.futures.Future[Any] = torch.futures.Future()
        parts.set_result({"w": torch.full((1,), value)})
        return {"half": half, "parts": parts}

    recorded, replayed = tasks(8.0), tasks(0.0)
    held = find_held({"main": recorded}, set())

    assert set(held) == {"main.half.value", "main.parts.value['w']"}
    assert put_back({"main": replayed}, held, {}) == []
    assert replayed["half"].wait().tolist() == [4.0, 4.0]
    assert replayed["parts"].wait()["w"].tolist() == [8.0]


def test_a_task_is_waited_for_and_then_asked() -> None:
    told: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    threading.Timer(0.05, lambda: told.set_result(torch.ones(2))).start()
    left_out: list[str] = []

    held = find_held({"main": {"told": told}}, set(), left_out=left_out, wait_s=5)

    assert list(held) == ["main.told.value"]
    assert left_out == []
    late = {"late": torch.futures.Future()}
    assert find_held({"main": late}, set(), left_out=left_out, wait_s=0.01) == {}
    assert left_out == ["main.late is an exchange between ranks that is still under way"]


def test_a_walk_that_others_need_too_finds_the_same_and_is_made_once() -> None:
    hidden = torch.ones(2)
    variables = {"trainer": Trainer(), "hidden": hidden, "again": [hidden], "counts": np.ones(3)}
    call = {"args": [hidden, torch.zeros(4)]}
    reach = reach_of({"main": variables}, call)

    found = find_held({"main": variables}, set(), call=call, reach=reach)
    own = find_held({"main": variables}, set(), call=call)
    variables["later"] = torch.ones(5)
    state = ScriptState.take(reach)

    assert list(found) == list(own)
    assert all(found[path] is own[path] for path in own)
    assert "main.again[0]" in state.facts
    assert "main.later" not in state.facts
