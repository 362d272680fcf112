"""Sections of a checkpoint, such as what the pipeline remembers, lie in files of their own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from supervisor.errors import CheckpointDamaged
from supervisor.pipeline import Pipeline
from supervisor.settings import CheckpointSettings, PolicySettings, RunSettings
from supervisor.storage.checkpoints.checkpoint_files import (
    PIPELINE,
    read_section,
    section_file,
    write_section,
)
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.testing import synthetic_run


def test_a_pipeline_goes_on_from_the_file_as_if_nothing_had_been(tmp_path: Path) -> None:
    records = list(synthetic_run("spike", 200))
    first, second, new = (Pipeline(RunSettings(), PolicySettings()) for _ in range(3))
    for record in records[:90]:
        first.update(record)
    write_section(tmp_path, PIPELINE, first.state_dict())
    remembered = read_section(tmp_path, PIPELINE)
    assert remembered is not None
    second.load_state_dict(remembered)

    went_on, read, began_anew = (
        [pipeline.update(record).risk.probability for record in records[90:]]
        for pipeline in (first, second, new)
    )

    assert read == went_on
    assert read != began_anew


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    write_section(tmp_path, PIPELINE, {"best": math.inf, "last": math.nan})

    memory = read_section(tmp_path, PIPELINE)

    assert memory is not None
    assert memory["best"] == math.inf
    assert math.isnan(memory["last"])


def test_a_checkpoint_without_it_has_none(tmp_path: Path) -> None:
    assert read_section(tmp_path, PIPELINE) is None


def test_a_changed_file_makes_the_checkpoint_a_damaged_one(tmp_path: Path) -> None:
    ring = CheckpointRing(tmp_path / "checkpoints", CheckpointSettings(min_free_gib=0.0))
    saved = ring.save(
        7, lambda folder: write_section(folder, "extra", {"a": 1}), reason="test", meta={}
    )
    path = saved.path / section_file("extra")
    assert path.stat().st_mode & 0o077 == 0
    path.write_text('{"a": 2}')

    with pytest.raises(CheckpointDamaged, match=r"extra\.json"):
        ring.get(7)
