"""What does not fit is found before anything is written, named, and nothing is touched."""

from __future__ import annotations

import collections
import enum
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from supervisor.errors import CheckpointError, StateTorn
from supervisor.training_state.plain_form import KIND, from_plain, to_plain
from supervisor.training_state.snapshot import copy_state
from supervisor.training_state.state import ROLLBACK_PARTS
from supervisor.training_state.tensors import first_difference
from tests.training_state.small_runs import Run, build_run


class Phase(enum.Enum):
    WARM = 1


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Progress:
    step: int
    best: float


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
values = st.recursive(
    scalars | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(scalars | st.just(KIND), inner, max_size=3)
        | st.lists(inner, max_size=3).map(collections.deque)
    ),
    max_leaves=10,
)


@given(values)
@settings(max_examples=50, deadline=None)
def test_containers_come_back_as_they_were(value: Any) -> None:
    left_out: list[str] = []

    returned = from_plain(to_plain(value, "value", left_out))

    assert returned == value
    assert type(returned) is type(value)
    assert left_out == []


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(b=1, a=2),
        collections.Counter("aab"),
        collections.defaultdict(list, {"a": [1]}),
        {1, 2},
        frozenset({"a"}),
        {(1, "a"): 2},
        collections.deque([1, 2], maxlen=2),
        Phase.WARM,
        Pair(1, 2),
        Progress(3, 0.5),
        pathlib.Path("a/b"),
        complex(1, -2),
        torch.Size([2, 3]),
        torch.float16,
        torch.device("cpu"),
        np.float64(0.1),
        bytearray(b"xy"),
        b"",
    ],
)
def test_other_values_come_back_with_their_class(value: Any) -> None:
    returned = from_plain(to_plain(value, "value", []))

    assert returned == value
    assert type(returned) is type(value)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "uint16", "<U3", "f8"])
def test_arrays_come_back_to_the_bit(dtype: str) -> None:
    array = np.ones((2, 3), dtype=dtype)[:, ::2]

    returned = from_plain(to_plain(array, "array", []))

    assert returned.dtype == array.dtype
    np.testing.assert_array_equal(returned, array)


def test_what_needs_pickle_is_left_out_by_name() -> None:
    left_out: list[str] = []

    plain = to_plain({"fine": 1, "hook": lambda x: x}, "tracked ema", left_out)

    assert plain == {"fine": 1, "hook": None}
    assert left_out == ["tracked ema['hook']: builtins.function cannot be saved without pickle"]


def test_a_cycle_is_left_out() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    left_out: list[str] = []

    to_plain(cycle, "loop", left_out)

    assert "nested deeper" in left_out[0]


def test_a_class_that_is_not_imported_becomes_its_fields() -> None:
    form = to_plain(Progress(3, 0.5), "progress", [])
    form["module"] = "no.such.module"

    assert from_plain(form) == {"step": 3, "best": 0.5}


def test_a_word_that_stands_in_code_comes_back_as_the_same_object() -> None:
    saved = {"".join(["exp_", "avg"]): "".join(["lo", "ss"])}

    found = from_plain(saved)

    assert next(iter(found)) is sys.intern("exp_avg")
    assert found["exp_avg"] is sys.intern("loss")


State = dict[str, Any]


class Extra(nn.Linear):
    """A layer with an extra state, which it may refuse."""

    refuses = False

    def get_extra_state(self) -> Any:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        if self.refuses:
            raise RuntimeError("not this one")


class Average:
    """Tracked; loads half of its state before it refuses, and takes its own back again."""

    def __init__(self) -> None:
        self.one, self.two = torch.zeros(2), 0

    def state_dict(self) -> State:
        return {"one": self.one, "two": self.two}

    def load_state_dict(self, state: State) -> None:
        self.one.copy_(state["one"])
        self.two = state["two"]


def run_with_everything() -> Run:
    model = nn.Sequential(nn.Linear(4, 8), Extra(8, 8))
    run = build_run(lambda p: torch.optim.Adam(p, 1e-2), lambda o: lr_scheduler.StepLR(o, 3), model)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    run.registry.add_scaler(scaler)
    average = Average()
    run.registry.track("average", average)
    run.kept = (scaler, average)  # type: ignore[attr-defined]  # the registry holds weakly
    run.train(3)
    return run


def last(run: Run) -> nn.Linear:
    found = run.model[1]  # type: ignore[index]
    assert isinstance(found, nn.Linear)
    return found


def meta(run: Run, state: State) -> None:
    last(run).bias = nn.Parameter(torch.empty(8, device="meta"))


def freed(run: Run, state: State) -> None:
    last(run).bias.untyped_storage().resize_(0)


def shared_memory(run: Run, state: State) -> None:
    last(run).bias.data = torch.zeros(1).expand(8)


def whole_numbers(run: Run, state: State) -> None:
    state["models"]["model_0"]["1.bias"] = torch.ones(8, dtype=torch.int64)


def complex_numbers(run: Run, state: State) -> None:
    state["models"]["model_0"]["1.bias"] = torch.ones(8, dtype=torch.complex64)


def too_large(run: Run, state: State) -> None:
    last(run).bias.data = last(run).bias.data.half()
    state["models"]["model_0"]["1.bias"] = torch.full((8,), 1e6)


def sparse(run: Run, state: State) -> None:
    saved = state["models"]["model_0"]["1.bias"]
    state["models"]["model_0"]["1.bias"] = saved.to_sparse()


def no_extra(run: Run, state: State) -> None:
    del state["extra"]["model_0"]


def extra_state_raises(run: Run, state: State) -> None:
    last(run).refuses = True  # type: ignore[assignment]


def tracked_raises_half_way(run: Run, state: State) -> None:
    del state["tracked"]["average"]["two"]
    state["tracked"]["average"]["one"] = torch.ones(2)


def scaler_shape(run: Run, state: State) -> None:
    state["scalers"]["scaler_0"]["_scale"] = torch.ones(3)


def optimizer_form(run: Run, state: State) -> None:
    state["optimizers"]["optimizer_0"]["state"][1]["exp_avg"] = {"__kind__": "array"}


def optimizer_dtypes(run: Run, state: State) -> None:
    state["optimizers"]["optimizer_0"]["dtypes"].pop()


IN_PLACE: list[tuple[Callable[[Run, State], None], str]] = [
    (meta, "model_0.1.bias: it is on the device meta"),
    (freed, "model_0.1.bias: its memory has been freed"),
    (shared_memory, "model_0.1.bias: its elements share their memory"),
    (whole_numbers, "model_0.1.bias: int64 in the checkpoint, float32 now"),
    (complex_numbers, "model_0.1.bias: complex64 in the checkpoint"),
    (too_large, "model_0.1.bias: 1e.06 in the checkpoint is too large for float16"),
    (sparse, "model_0.1.bias: sparse_coo in the checkpoint"),
    (no_extra, "model_0: the checkpoint does not hold its extra"),
    (extra_state_raises, "model_0.1 extra state: RuntimeError: not this one: nothing was changed"),
    (tracked_raises_half_way, "average: KeyError: 'two': nothing was changed"),
    (scaler_shape, "scaler_0: _scale has another shape"),
    (optimizer_form, "optimizer_0: its state cannot be built again"),
    (optimizer_dtypes, "optimizer_0: the checkpoint holds 3 dtypes"),
]


def schedule_of_more_groups(run: Run, state: State) -> None:
    state["schedulers"]["scheduler_0"]["base_lrs"] = [0.1, 0.1]


def python_generator(run: Run, state: State) -> None:
    state["rng"]["python"]["words"] = state["rng"]["python"]["words"][:-1]


def numpy_generator(run: Run, state: State) -> None:
    state["rng"]["numpy"]["bit_generator"] = "PCG64"


def torch_generator(run: Run, state: State) -> None:
    state["rng"]["torch"] = state["rng"]["torch"][:-16]  # 8 less: torch 2.6 knows an older format


def gradient(run: Run, state: State) -> None:
    state["grads"]["optimizer_0"][1] = torch.ones(3)


IN_A_NEW_PROCESS: list[tuple[Callable[[Run, State], None], str]] = [
    (schedule_of_more_groups, "scheduler_0: base_lrs has 2 entries in the checkpoint"),
    (python_generator, "random generators: ValueError"),
    (numpy_generator, "random generators"),
    (torch_generator, "random generators: RuntimeError"),
    (gradient, r"the gradient of parameter 1 has shape \(3,\)"),
]


@pytest.mark.parametrize(
    ("change", "message", "parts"),
    [(*case, ROLLBACK_PARTS) for case in IN_PLACE] + [(*case, None) for case in IN_A_NEW_PROCESS],
    ids=[case[0].__name__ for case in IN_PLACE + IN_A_NEW_PROCESS],
)
def test_a_misfit_is_refused_and_nothing_is_touched(
    change: Callable[[Run, State], None], message: str, parts: frozenset[str] | None
) -> None:
    run = run_with_everything()
    state = copy_state(run.state.capture(include_grads=True))
    run.train(2)
    torch.rand(3)
    np.random.rand(3)
    change(run, state)
    before = copy_state(whole(run))

    with pytest.raises(CheckpointError, match=message) as caught:
        run.state.restore(state, parts)

    assert not isinstance(caught.value, StateTorn)
    assert first_difference(before, whole(run)) is None


def whole(run: Run) -> State:
    """The live state, but for the tensor that cannot be read any more."""
    state = run.state.capture(include_grads=True)
    bias = state["models"]["model_0"]["1.bias"]
    if bias.is_meta or bias.untyped_storage().nbytes() == 0:
        del state["models"]["model_0"]["1.bias"]
    return state


def test_a_buffer_that_the_saved_one_does_not_fit_is_replaced() -> None:
    run = run_with_everything()
    last(run).register_buffer("places", torch.arange(3).view(3, 1).expand(3, 2))
    last(run).register_buffer("mask", torch.tensor([True, False]))
    state = copy_state(run.state.capture())
    last(run).places = torch.zeros(1, dtype=torch.int64).expand(3, 2)
    last(run).mask = torch.tensor([0.5, 0.5])

    run.state.restore(state, ROLLBACK_PARTS)

    assert last(run).places.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert last(run).mask.dtype == torch.bool


def test_what_cannot_be_taken_back_is_torn() -> None:
    run = run_with_everything()
    state = copy_state(run.state.capture())
    average = run.registry.tracked["average"]
    average.state_dict = lambda: {"one": torch.rand(2)}  # less than it needs
    del state["tracked"]["average"]["two"]

    with pytest.raises(StateTorn, match="average could not be taken back"):
        run.state.restore(state, ROLLBACK_PARTS)
