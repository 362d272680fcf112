"""What the pipeline remembers goes with a checkpoint, in a file of its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from supervisor.errors import CheckpointDamaged
from supervisor.pipeline import Pipeline
from supervisor.settings import CheckpointSettings, PolicySettings, RunSettings
from supervisor.storage.checkpoints import CheckpointRing
from supervisor.storage.memory_file import MEMORY_FILE, read_memory, write_memory
from supervisor.testing import synthetic_run


def test_a_pipeline_goes_on_from_the_file_as_if_nothing_had_been(tmp_path: Path) -> None:
    records = list(synthetic_run("spike", 200))
    first = Pipeline(RunSettings(), PolicySettings())
    for record in records[:150]:
        first.update(record)
    write_memory(tmp_path, first.state_dict())
    second = Pipeline(RunSettings(), PolicySettings())
    memory = read_memory(tmp_path)
    assert memory is not None
    second.load_state_dict(memory)

    for record in records[150:]:
        mine, other = first.update(record).risk, second.update(record).risk
        assert mine.probability == other.probability


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    write_memory(tmp_path, {"best": math.inf, "last": math.nan})

    memory = read_memory(tmp_path)

    assert memory is not None
    assert memory["best"] == math.inf
    assert math.isnan(memory["last"])


def test_a_checkpoint_without_it_has_none(tmp_path: Path) -> None:
    assert read_memory(tmp_path) is None


def test_a_changed_file_makes_the_checkpoint_a_damaged_one(tmp_path: Path) -> None:
    ring = CheckpointRing(tmp_path / "checkpoints", CheckpointSettings(min_free_gib=0.0))
    saved = ring.save(7, lambda folder: write_memory(folder, {"a": 1}), reason="test", meta={})
    path = saved.path / MEMORY_FILE
    assert path.stat().st_mode & 0o077 == 0
    path.write_text('{"a": 2}')

    with pytest.raises(CheckpointDamaged, match=MEMORY_FILE):
        ring.get(7)
