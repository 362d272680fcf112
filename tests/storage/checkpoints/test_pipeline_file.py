"""What the pipeline remembers goes with a checkpoint, in a file of its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from supervisor.errors import CheckpointDamaged
from supervisor.pipeline import Pipeline
from supervisor.settings import CheckpointSettings, PolicySettings, RunSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.checkpoints.pipeline_file import (
    PIPELINE_FILE,
    read_pipeline,
    write_pipeline,
)
from supervisor.testing import synthetic_run


def test_a_pipeline_goes_on_from_the_file_as_if_nothing_had_been(tmp_path: Path) -> None:
    records = list(synthetic_run("spike", 200))
    first, second, new = (Pipeline(RunSettings(), PolicySettings()) for _ in range(3))
    for record in records[:90]:
        first.update(record)
    write_pipeline(tmp_path, first.state_dict())
    remembered = read_pipeline(tmp_path)
    assert remembered is not None
    second.load_state_dict(remembered)

    went_on, read, began_anew = (
        [pipeline.update(record).risk.probability for record in records[90:]]
        for pipeline in (first, second, new)
    )

    assert read == went_on
    assert read != began_anew


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    write_pipeline(tmp_path, {"best": math.inf, "last": math.nan})

    memory = read_pipeline(tmp_path)

    assert memory is not None
    assert memory["best"] == math.inf
    assert math.isnan(memory["last"])


def test_a_checkpoint_without_it_has_none(tmp_path: Path) -> None:
    assert read_pipeline(tmp_path) is None


def test_a_changed_file_makes_the_checkpoint_a_damaged_one(tmp_path: Path) -> None:
    ring = CheckpointRing(tmp_path / "checkpoints", CheckpointSettings(min_free_gib=0.0))
    saved = ring.save(7, lambda folder: write_pipeline(folder, {"a": 1}), reason="test", meta={})
    path = saved.path / PIPELINE_FILE
    assert path.stat().st_mode & 0o077 == 0
    path.write_text('{"a": 2}')

    with pytest.raises(CheckpointDamaged, match=PIPELINE_FILE):
        ring.get(7)
