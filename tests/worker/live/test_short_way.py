"""Ordinary steps take the short way, and leave behind what any other step leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from supervisor.actions.controls import Controls
from supervisor.calm_steps import as_record
from supervisor.records import StepRecord
from supervisor.storage.steps.flight_recorder import FlightReader, FlightRecorder
from supervisor.storage.steps.tape import EntryKind, StepMark, TapeReader, TapeWriter
from supervisor.worker.ground.calm_line import MAX_WAITING, RECENT, CalmLine
from supervisor.worker.ground.step_probe import StepProbe
from supervisor.worker.live.short_way import ShortWay
from supervisor.worker.treatment.clinic import Clinic
from supervisor.worker.treatment.update_controls import UpdateControls

NOW = 1e9
LR = 0.125


class Scene:
    """A short way whose line is 2.1, with what it writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recorder = FlightRecorder(folder / "a.steps", 1)
        self.tape = TapeWriter(folder / "a.tape")
        self.updates = UpdateControls(Controls(), lambda step, why: None)
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
        calm = CalmLine()
        for index in range(RECENT):
            value = 1.0 + index / (RECENT - 1)
            calm.judged(StepRecord(step=index, loss=value, grad_norm=value, batch_size=4))
        calm.settle()
        self.clinic = SimpleNamespace(calm=calm, waiting=[])
        self.probe = StepProbe()
        self.probe.record(6, NOW, self.optimizer)
        self.see(loss=1.5, grad_norm=1.5)
        self.way = ShortWay(
            recorder=self.recorder,
            tape=self.tape,
            clinic=cast(Clinic, self.clinic),
            updates=self.updates,
        )

    def see(self, *, loss: float, grad_norm: float) -> None:
        self.probe.forget()
        self.probe.saw_forward((torch.zeros(4, 2),), {})
        self.probe.loss, self.probe.loss_seen = loss, True
        self.probe.grad_norm = grad_norm
        self.probe.backward_calls = 1

    def take(self) -> bool:
        return self.way.take(self.probe, self.optimizer, 7)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr("supervisor.worker.live.short_way.time.time", lambda: NOW + 0.5)
    scene = Scene(tmp_path)
    yield scene
    scene.recorder.close()
    scene.tape.close()


def test_an_ordinary_step_is_recorded_and_waits(scene: Scene) -> None:
    signature = scene.probe.signature

    taken = scene.take()

    (values, row), *others = scene.clinic.waiting
    assert (taken, row, others) == (True, 0, [])
    with FlightReader(scene.recorder.path) as reader:
        (recorded,) = reader.records()
    said = as_record(values)
    for record in (said, recorded):
        assert (record.step, record.loss, record.grad_norm, record.lr) == (7, 1.5, 1.5, LR)
        assert (record.step_time_s, record.batch_size) == (0.5, 4)
        assert (record.loss_seen, record.grad_norm_seen) == (True, True)
        assert math.isnan(record.loss_scale)
    assert recorded.memory_gib == said.memory_gib
    end = scene.tape.write_out()
    mark = StepMark.unpack(TapeReader(scene.folder / "a.tape", end=end).take(EntryKind.STEP))
    assert mark == StepMark(7, LR, 1, 1, signature)
    assert not scene.probe.loss_seen


def _set(**values: Any) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        for name, value in values.items():
            setattr(scene.probe, name, value)

    return change


def _fill(scene: Scene) -> None:
    step = StepRecord(step=0)
    scene.clinic.waiting += [(replace(step), 0) for _ in range(MAX_WAITING - 1)]


@pytest.mark.parametrize(
    "change",
    [
        _set(loss=2.2),
        _set(loss=math.nan),
        _set(grad_norm=2.2),
        _set(grad_norm=math.inf),
        _set(grad_norm=None),
        _set(loss_seen=False),
        _set(batch_size=3),
        _set(observed={"kl": 0.5}),
        _set(announced=True),
        _set(begins_training=True),
        _set(others_trained=True),
        lambda scene: setattr(scene.updates.controls, "lr_factor", 0.5),
        lambda scene: setattr(scene.updates, "skip_steps", frozenset({9})),
        lambda scene: setattr(scene.clinic, "calm", CalmLine()),
        _fill,
    ],
)
def test_any_other_step_is_left_as_it_is(scene: Scene, change: Callable[[Scene], None]) -> None:
    change(scene)
    waiting = len(scene.clinic.waiting)

    taken = scene.take()

    assert not taken
    assert len(scene.clinic.waiting) == waiting
    assert (scene.recorder.rows, scene.tape.offset) == (0, 0)
    assert scene.probe.backward_calls == 1
