from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.parent.process.memory import count_oom_kills, sample_memory


def count(tmp_path: Path, own: str, files: dict[str, str]) -> int:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    return count_oom_kills(tmp_path / "cgroup", tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "name", "text"),
    [
        ("0::/user/job\n", "user/job/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("4:memory:/elsewhere\n", "memory/memory.oom_control", "oom_kill 2\n"),
    ],
)
def test_kills_are_counted_in_both_versions_of_control_groups(
    tmp_path: Path, own: str, name: str, text: str
) -> None:
    assert count(tmp_path, own, {name: text}) == 2


@pytest.mark.parametrize("own", ["", "garbage\n", "0::/none\n"])
def test_what_cannot_be_read_counts_as_no_kill(tmp_path: Path, own: str) -> None:
    assert count(tmp_path, own, {}) == 0
    assert count_oom_kills(tmp_path, tmp_path / "missing") == 0


def test_a_sample_reads_as_a_sentence() -> None:
    text = str(sample_memory(3 * 2**30))

    assert text.startswith("last memory sample: 3.00 GiB used by the worker, ")
