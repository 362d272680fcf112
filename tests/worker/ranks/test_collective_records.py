"""Torch's records of collectives are written when a rank's stacks are asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from supervisor.worker.ranks.collective_records import (
    COUNT,
    CollectiveCount,
    CollectiveRecords,
    ask_torch_to_keep_records,
    entered_collectives,
)

SEEN = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if 'TORCH_' in k}))"


def test_they_are_written_once_for_each_time_that_stacks_are_asked_for(tmp_path: Path) -> None:
    stacks, path = tmp_path / "stacks_0.txt", tmp_path / "collectives_0.json"
    stacks.write_text("")
    records = CollectiveRecords(stacks, path)

    records.look()
    assert not path.exists()
    stacks.write_text("Thread 0x1 (most recent call first):")
    records.look()
    documents = json.loads(path.read_text())
    path.unlink()
    records.look()

    assert [document["version"] for document in documents]
    assert not path.exists()


@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_torch_is_told_where_to_dump_unless_the_user_has_done_it(name: str) -> None:
    before = dict(os.environ)
    try:
        ask_torch_to_keep_records(Path("/runs/a/nccl_trace_rank_"), {name: "/mine"})
        users = seen_by_a_child()
        ask_torch_to_keep_records(Path("/runs/a/nccl_trace_rank_"), {})
        ours = seen_by_a_child()
    finally:
        for variable in set(ours) - set(before):
            os.unsetenv(variable)

    assert "/runs/a/nccl_trace_rank_" not in users.values()
    assert users["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    is_new = hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json")
    file, size = (
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_BUFFER_SIZE")
        if is_new
        else ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    )
    assert ours[file] == "/runs/a/nccl_trace_rank_"
    assert ours[size] == "2000"
    assert dict(os.environ) == before


def seen_by_a_child() -> dict[str, str]:
    """What a process that is started sees: the variables of C, not those of `os.environ`."""
    line = [sys.executable, "-c", SEEN]
    found: dict[str, str] = json.loads(subprocess.run(line, capture_output=True).stdout)
    return found


def test_the_number_is_kept_while_the_rank_waits(tmp_path: Path) -> None:
    path = tmp_path / "alive" / "rank_1.collectives"

    CollectiveCount(path, lambda: 38).start()

    deadline = time.monotonic() + 30.0
    while COUNT.unpack(path.read_bytes())[0] != 38 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert COUNT.unpack(path.read_bytes())[0] == 38


def test_without_a_group_nothing_is_known() -> None:
    assert entered_collectives() == 0


def test_others_are_told_as_often_whatever_fails_there(tmp_path: Path) -> None:
    told = threading.Event()

    def tell() -> None:
        told.set()
        raise RuntimeError("a group was destroyed meanwhile")

    CollectiveCount(tmp_path / "rank_0.collectives", lambda: 1, [tell]).start()

    assert told.wait(30.0)
