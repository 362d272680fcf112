"""Objects that raise, or lie, when somebody asks them what plain Python never does.

Each program is run plainly and supervised; to the bit the same lines, files and exit code. What is
asked of an object and when it answers badly are drawn; more kinds with ``--all``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.scenarios import runs
from tests.scenarios.loop_styles import PRELUDE

TEXT = """
import hashlib, sys
from unittest.mock import MagicMock
import torch
from torch.utils.data import DataLoader, Dataset

STEP = 0
SPECS = [word.split(":") for word in sys.argv[1:]]
ERRORS = {"runtime": RuntimeError, "attribute": AttributeError, "type": TypeError}
ERRORS |= {"exit": SystemExit, "interrupt": KeyboardInterrupt}
ERRORS |= {"odd": type("Odd", (BaseException,), {})}
OF_TORCH = ("grad_scale", "found_inf", "weight", "bias")  # what torch itself asks for


def is_awake(when):
    return STEP >= {"always": -1, "later": 15, "end": 24}[when]


def answer(error, name):
    if error == "mock":
        return MagicMock()
    raise ERRORS[error](name)


def method(base, name, error, when):
    def asked(self, *args, **kwargs):
        if is_awake(when):
            return answer(error, name)
        inherited = getattr(base, name, None)
        if inherited is None:
            raise AttributeError(name)
        return inherited(self, *args, **kwargs)
    return asked


def unknown(base, error, when):
    def __getattr__(self, name):
        inherited = getattr(base, "__getattr__", None)
        if inherited is not None:
            try:
                return inherited(self, name)
            except AttributeError:
                pass
        if name.startswith("__") or name in OF_TORCH or not is_awake(when):
            raise AttributeError(name)
        return answer(error, name)
    return __getattr__


def attribute(base, name, error, when):
    def asked(self):
        if is_awake(when):
            return answer(error, name)
        if not hasattr(base, name):
            raise AttributeError(name)
        return getattr(super(type(self), self), name)
    return property(asked)


def kind_of(error, when):
    return property(lambda self: answer(error, "kind") if is_awake(when) else type(self))


def hostile(kind, base):
    body = {}
    for which, name, error, when in SPECS:
        if which not in (kind, "all"):
            continue
        if name == "unknown":
            body["__getattr__"] = unknown(base, error, when)
        elif name == "__class__":
            body[name] = kind_of(error, when)
        elif name == "unhashable":
            body |= {"__eq__": lambda self, other: self is other, "__hash__": None}
        elif name.startswith("@"):
            body[name[1:]] = attribute(base, name[1:], error, when)
        else:
            body[name] = method(base, name, error, when)
    if "__eq__" in body:
        body.setdefault("__hash__", base.__hash__)
    return type(kind, (base,), body)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        last = hostile("Layer", torch.nn.Linear)(8, 1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), last)

    def forward(self, x):
        return self.layers(x)


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randn(64, 4)

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self):
        return 64


class Thing:
    def __init__(self):
        self.value, self.tensor = 3, torch.ones(2)


torch.manual_seed(0)
model = hostile("Model", Net)()
optimizer = hostile("Optimizer", torch.optim.Adam)(model.parameters(), 1e-2)
schedule = hostile("Schedule", torch.optim.lr_scheduler.StepLR)(optimizer, 5)
loader = hostile("Loader", DataLoader)(hostile("Data", Rows)(), batch_size=8, shuffle=True)
thing = hostile("Thing", Thing)()
others = [hostile("Words", str)("words"), hostile("Listed", list)([1, torch.ones(1)]), thing]
others += [hostile("Mapped", dict)(a=torch.ones(1))]
for epoch in range(3):
    for batch in loader:
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        thing.value += 1
        STEP += 1
        print(f"step {STEP} {loss.item():.9f}", flush=True)
    schedule.step()
weights = b"".join(p.detach().numpy().tobytes() for p in torch.nn.Module.parameters(model))
print("weights", hashlib.sha256(weights).hexdigest())
"""
SETTINGS = ("checkpoint.every_steps=7",)

OBJECTS = ("Model", "Layer", "Optimizer", "Schedule", "Data", "Loader", "Thing", "Words")
OBJECTS += ("Listed", "Mapped")
QUESTIONS = ("unknown", "__eq__", "__bool__", "__len__", "__iter__", "__repr__", "__str__")
QUESTIONS += ("__hash__", "__class__", "__dir__", "__reduce_ex__", "__deepcopy__", "__copy__")
QUESTIONS += ("__getstate__", "__sizeof__", "__contains__", "__format__", "unhashable")
QUESTIONS += ("@gradient_checkpointing_enable", "@supports_gradient_checkpointing", "@config")
QUESTIONS += ("@grad_checkpointing", "@state_dict", "@modules", "@parameters", "@named_modules")
QUESTIONS += ("@named_parameters", "@buffers", "@param_groups", "@defaults", "@optimizer")
QUESTIONS += ("@last_epoch", "@dataset", "@batch_sampler", "@sampler", "@num_workers", "@training")
QUESTIONS += ("@shape", "@dtype", "@name", "@__module__", "@__name__", "@__doc__", "@__dict__")
ERRORS = ("runtime", "attribute", "type", "exit", "interrupt", "odd", "mock")

AT_THE_END = {
    "unknown names, by SystemExit": ["all:unknown:exit:end"],
    "a method without its counterpart": ["Model:@gradient_checkpointing_enable:mock:always"],
    "properties of the model, by KeyboardInterrupt": [
        f"Model:@{name}:interrupt:end"
        for name in ("modules", "buffers", "state_dict", "gradient_checkpointing_enable", "config")
    ],
    "what every object has": [
        f"{kind}:{name}:odd:end"
        for kind in OBJECTS
        for name in ("__eq__", "__repr__", "__class__", "__reduce_ex__", "__dir__")
    ],
}


@pytest.mark.parametrize("words", AT_THE_END.values(), ids=AT_THE_END)
def test_what_objects_answer_after_the_training_changes_nothing(
    tmp_path: Path, words: list[str]
) -> None:
    as_plain(tmp_path, words)


def test_what_objects_answer_during_the_training_changes_nothing(tmp_path: Path) -> None:
    as_plain(tmp_path, [f"{kind}:unknown:exit:later" for kind in OBJECTS])


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_drawn_answers_change_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    kinds = draw.choices(OBJECTS, k=3)

    as_plain(tmp_path, [_drawn(draw, kind) for kind in kinds], may_fail=True)


def as_plain(folder: Path, words: list[str], *, may_fail: bool = False) -> None:
    plain = runs.train_plainly(folder / "plain", TEXT, words)
    if may_fail and plain.returncode:
        pytest.skip("plain Python asks it, too")
    assert plain.returncode == 0, plain.stderr

    ended = runs.supervised(folder / "supervised", TEXT, words, settings=SETTINGS)

    trained = [line for line in ended.stdout.splitlines() if not line.startswith("supervisor:")]
    assert (ended.returncode, trained) == (0, plain.stdout.splitlines()), ended.stderr
    assert len(ended.events("worker_exited")) == 1


def _drawn(draw: random.Random, kind: str) -> str:
    question = draw.choice(QUESTIONS)
    is_method = not question.startswith("@") and question != "unknown"
    error = draw.choice(ERRORS[: -1 if is_method else None])
    return f"{kind}:{question}:{error}:{draw.choice(('always', 'later', 'end', 'end'))}"


def test_a_model_that_can_only_switch_checkpointing_on_ends_once_with_its_weights(
    tmp_path: Path,
) -> None:
    text = (
        PRELUDE
        + """
class Encoder(nn.Sequential):  # as Sentence Transformers: there is no method for off
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None): return None

model = Encoder(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(30):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
    )
    expected = runs.train_plainly(tmp_path / "plain", text)

    ended = runs.supervised(tmp_path / "run", text)

    assert ended.returncode == 0, ended.stderr
    assert len(ended.events("attempt_started")) == 1
    assert "Traceback" not in ended.stderr
    assert runs.differences(ended.result(), expected.result()) == []
