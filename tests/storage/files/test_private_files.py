"""What the supervisor stores itself does not pass through the patches of the script's files."""

from __future__ import annotations

import builtins
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.files.json_files import LineFile, to_line
from supervisor.storage.files.private_files import map_shared, write_json
from supervisor.training_state.state import FORMAT
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint, SingleWriter

PATCHED = ("open", "rename", "replace", "link", "unlink", "remove", "mkdir")


def test_a_checkpoint_a_journal_and_a_record_are_written_past_the_patches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = CheckpointRing(tmp_path / "checkpoints", CheckpointSettings(min_free_gib=0.0))
    weights = {"models": {"model_0": {"module.weight": torch.ones(64)}}}
    seen: list[str] = []

    def watch(module: Any, name: str) -> None:
        original = getattr(module, name)

        def patched(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(str(tmp_path)):
                seen.append(f"{name} {path}")
            return original(path, *args, **kwargs)

        monkeypatch.setattr(module, name, patched)

    for name in PATCHED:
        watch(os, name)
    watch(builtins, "open")
    watch(io, "open")

    state = {"format": FORMAT, **weights}
    SingleWriter(ring, lambda: None).write(
        CapturedCheckpoint(step=8, state=state, meta={}, reason="test", sections={})
    )
    ring.mark_stable(8)
    LineFile(tmp_path / "events.jsonl").append(to_line({"kind": "test"}))
    write_json(tmp_path / "run.json", {"a": 1})

    assert [one.step for one in ring.checkpoints()] == [8]
    assert seen == []


def test_who_maps_it_later_finds_what_is_there_and_may_want_more(tmp_path: Path) -> None:
    path = tmp_path / "board" / "notes"
    first = map_shared(path, 8)
    first[:3] = b"one"

    second = map_shared(path, 16)

    assert second[:16] == b"one" + bytes(13)
    assert path.stat().st_mode & 0o777 == 0o600
