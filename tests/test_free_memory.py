"""What control groups say of memory, read from trees of files as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from supervisor.free_memory import count_oom_kills, free_bytes, taken_at_peak

NO_LIMIT = "9223372036854771712\n"
STAT = "cache 900\nrss 100\ninactive_file {own}\nactive_file 7\ntotal_inactive_file {total}\n"
STAT_2 = "anon 100\nfile 900\ninactive_file {own}\nactive_file 7\n"


def second(limit: str, used: int, in_files: int = 0, *, high: str = "max\n") -> dict[str, str]:
    stat = STAT_2.format(own=in_files)
    current = f"{used}\n"
    return {
        "memory.max": limit,
        "memory.high": high,
        "memory.current": current,
        "memory.stat": stat,
    }


def first(limit: str, used: int, in_files: int = 0) -> dict[str, str]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": STAT.format(own=1, total=in_files),
    }


def build(tmp_path: Path, own: str, groups: dict[str, dict[str, str]]) -> tuple[Path, Path]:
    for group, files in groups.items():
        folder = tmp_path / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    (tmp_path / "own").write_text(own)
    return tmp_path / "cgroup", tmp_path / "own"


@pytest.mark.parametrize(
    ("own", "groups", "free"),
    [
        ("0::/user/job\n", {"user/job": second("5000\n", 3000, 1000)}, 3000),
        ("0::/user/job\n", {"user/job": second("5000\n", 3000, high="4000\n")}, 1000),
        (
            "0::/user/job\n",
            {"user/job": second("max\n", 3000), "user": second("9000\n", 8000, 500)},
            1500,
        ),
        (
            "0::/user/job\n",
            {"user/job": second("5000\n", 1000), "user": second("9000\n", 8000)},
            1000,
        ),
        ("0::/\n", {".": second("5000\n", 6000)}, 0),
        ("4:memory:/job/step\n0::/\n", {"memory/job/step": first("5000\n", 3000, 500)}, 2500),
        (
            "4:cpu,memory:/job/step\n",
            {"memory/job/step": first(NO_LIMIT, 3000), "memory/job": first("4000\n", 3000)},
            1000,
        ),
        ("4:memory:/docker/abc\n", {"memory": first("5000\n", 3000)}, 2000),
        ("0::/job\n4:memory:/job\n", {"unified/job": {}, "memory/job": first("9\n", 2)}, 7),
    ],
    ids=[
        "version 2, files given back",
        "version 2, held up before its limit",
        "version 2, the limit of the group above",
        "version 2, two limits",
        "version 2, above its limit",
        "version 1, files given back",
        "version 1, the limit of the group above",
        "version 1, in a container",
        "both versions",
    ],
)
def test_the_tightest_group_says_what_is_free(
    tmp_path: Path, own: str, groups: dict[str, dict[str, str]], free: int
) -> None:
    assert free_bytes(*build(tmp_path, own, groups)) == free


@pytest.mark.parametrize(
    ("own", "groups"),
    [
        ("", {}),
        ("garbage\n", {}),
        ("0::/job\n", {"job": second("max\n", 3000)}),
        ("0::/job\n", {"job": {"memory.max": "5000\n"}}),
        ("4:memory:/job\n", {"memory/job": first(NO_LIMIT, 3000)}),
        ("3:cpu:/job\n", {"memory/job": first("5000\n", 3000)}),
    ],
)
def test_without_a_limit_the_host_says_what_is_free(
    tmp_path: Path, own: str, groups: dict[str, dict[str, str]]
) -> None:
    found = free_bytes(*build(tmp_path, own, groups))

    assert found > 1 << 20
    assert found <= psutil.virtual_memory().total
    assert free_bytes(tmp_path, tmp_path / "missing") > 1 << 20


def test_what_was_taken_at_the_peak_and_given_back_comes_again(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    3000 kB\nVmRSS:\t    1000 kB\n")

    assert taken_at_peak(status) == 2000 * 1024
    assert taken_at_peak(tmp_path / "missing") == 0


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
    group, _, file = name.rpartition("/")

    assert count_oom_kills(*build(tmp_path, own, {group: {file: text}})) == 2


@pytest.mark.parametrize("own", ["", "garbage\n", "0::/none\n"])
def test_what_cannot_be_read_counts_as_no_kill(tmp_path: Path, own: str) -> None:
    assert count_oom_kills(*build(tmp_path, own, {})) == 0
    assert count_oom_kills(tmp_path, tmp_path / "missing") == 0
