"""Every form in which torch's functions may be called gives what it gives in plain python."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.scenarios import runs
from tests.scenarios.runs import Ended, differences, plain

supervised = partial(runs.supervised, executed=True)

CALLS = """
import sys
import warnings
import torch
from torch import autograd, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
spare = nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []


class Tagged(torch.Tensor):
    pass


def loss():
    return model(torch.ones(5, 4)).pow(2).mean()


def edge(value):
    return get_gradient_edge(value)


def per_row():
    out = model(torch.ones(5, 4))
    return autograd.grad(out, model.parameters(), torch.ones(3, 5, 2), is_grads_batched=True)


def backward_of(*args, **kwargs):
    autograd.backward(*args, **kwargs)
    return [p.grad for p in model.parameters()]


def clipped(norm, *args, **kwargs):
    loss().backward()
    return norm, clip_grad_norm_(*args, **kwargs), [p.grad for p in model.parameters()]


def scaled():
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(outputs=loss()).backward()
    scaler.unscale_(optimizer=optimizer)
    return [p.grad for p in model.parameters()]


def infinite():
    spare.grad = torch.full((2,), float("inf"))
    return clip_grad_norm_([spare], 1.0, error_if_nonfinite=True)


P = model.parameters
CALLS = {
    "grad of a generator": lambda: autograd.grad(loss(), P()),
    "grad of a map": lambda: autograd.grad(loss(), map(lambda p: p, P())),
    "grad of a filter": lambda: autograd.grad(loss(), filter(lambda p: p.dim() > 1, P())),
    "grad of values": lambda: autograd.grad(loss(), dict(model.named_parameters()).values()),
    "grad of a dictionary": lambda: autograd.grad(loss(), dict(model.named_parameters())),
    "grad of one": lambda: autograd.grad(loss(), model[0].weight),
    "grad of an edge": lambda: autograd.grad(loss(), edge(model[0].weight)),
    "grad of edges": lambda: autograd.grad(loss(), [edge(p) for p in P()]),
    "grad of outputs' generator": lambda: autograd.grad((v for v in [loss(), loss()]), P()),
    "grad by keywords": lambda: autograd.grad(outputs=loss(), inputs=P(), retain_graph=True),
    "grad of unused": lambda: autograd.grad(loss(), [*P(), spare], allow_unused=True),
    "grad made zero": lambda: autograd.grad(loss(), [*P(), spare], materialize_grads=True),
    "grad of grads": lambda: autograd.grad(
        sum(g.pow(2).sum() for g in autograd.grad(loss(), P(), create_graph=True)), P()
    ),
    "grad in place": lambda: [
        g.mul_(2) for g in autograd.grad(loss(), P(), create_graph=True)
    ],
    "grad in rows": per_row,
    "grad of unused refused": lambda: autograd.grad(loss(), [*P(), spare]),
    "grad of nothing": lambda: autograd.grad(loss(), iter(())),
    "grad of a number": lambda: autograd.grad(loss(), 5),
    "grad without inputs": lambda: autograd.grad(loss()),
    "backward of a generator": lambda: backward_of(v for v in [loss(), loss()]),
    "backward of an edge": lambda: backward_of(edge(loss()), torch.ones(())),
    "backward by keywords": lambda: backward_of(tensors=loss(), inputs=P()),
    "backward with weights": lambda: backward_of([loss()], iter([torch.ones(())])),
    "backward of a number": lambda: backward_of(5),
    "method with inputs": lambda: (
        loss().backward(inputs=(p for p in P())), [p.grad for p in P()]
    ),
    "method of a subclass": lambda: loss().as_subclass(Tagged).backward(),
    "method of a vector": lambda: model(torch.ones(5, 4)).backward(),
    "clip of a generator": lambda: clipped(1, P(), 0.1),
    "clip of one": lambda: clipped(1, model[0].weight, 0.1),
    "clip by keywords": lambda: clipped(
        1, parameters=P(), max_norm=0.1, norm_type="inf", foreach=False
    ),
    "clip of nothing": lambda: clipped(1, (p for p in []), 0.1),
    "clip of infinities": infinite,
    "clip to a word": lambda: clipped(1, P(), "much"),
    "clip of a number": lambda: clip_grad_norm_(5, 1.0),
    "clip values": lambda: (loss().backward(), clip_grad_value_(P(), 0.01)),
    "scaler by keywords": scaled,
    "scaler with nothing": lambda: torch.amp.GradScaler("cpu").scale(),
    "equal by keywords": lambda: torch.equal(input=spare, other=spare),
    "a list of a subclass": lambda: torch.ones(3).as_subclass(Tagged).tolist(),
    "an array by force": lambda: spare.numpy(force=True).tolist(),
    "an array refused": lambda: spare.numpy(),
    "item of many": lambda: spare.item(),
    "truth of many": lambda: bool(spare),
}


def shown(value):
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(shown, value)]
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.requires_grad, value.detach().tolist()
    return value


for step in range(8):
    for name, call in CALLS.items():
        optimizer.zero_grad()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                came = shown(call())
            except Exception as error:
                came = type(error).__name__, str(error)
        if step == 1:
            print(name, came, [str(one.message) for one in said], flush=True)
    optimizer.zero_grad()
    # One of the parameters has no gradient: which, decides what the script does.
    found = autograd.grad(loss(), [*P(), spare], allow_unused=True)
    losses.append(sum(g is None for g in found))
    for parameter, gradient in zip(P(), found):
        parameter.grad = gradient
    optimizer.step()
torch.save({"model": model.state_dict(), "unused": losses}, sys.argv[1])
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = plain(tmp_path_factory.mktemp("plain"), CALLS)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_all_forms_give_the_same_results_warnings_and_errors(
    tmp_path: Path, undisturbed: Ended
) -> None:
    ended = supervised(tmp_path, CALLS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == undisturbed.stdout.splitlines()
    assert not differences(ended.result(), undisturbed.result())
    assert not ended.events("warning")


def test_gradients_that_were_none_are_none_in_the_replay(
    tmp_path: Path, undisturbed: Ended
) -> None:
    ended = supervised(
        tmp_path,
        CALLS.replace("in CALLS.items()", "in ()"),  # errors of torch are not raised there
        settings=["checkpoint.every_steps=5", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 6}]",
    )
    assert ended.returncode == 0, ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert not differences(ended.result(), undisturbed.result())
