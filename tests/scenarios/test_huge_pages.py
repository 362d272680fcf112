"""The worker's heap is asked for in huge pages, and the script's environment stays its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenarios.runs import supervised

LOOK = """
import json, os, subprocess, sys

kept = [bytearray(100_000) for _ in range(80)]  # too large for Python's own small blocks
flags, ours = [], False
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0]:
        ours = words[-1] == "[heap]"
    elif ours and words[0] == "VmFlags:":
        flags += words[1:]
child = subprocess.run(
    [sys.executable, "-c", "import os; print(os.environ.get('GLIBC_TUNABLES'))"],
    capture_output=True, text=True,
)
print(json.dumps({
    "tunables": os.environ.get("GLIBC_TUNABLES"),
    "ours": [name for name in os.environ if "TUNABLES" in name and name != "GLIBC_TUNABLES"],
    "of a child": child.stdout.strip(),
    "huge": "hg" in flags,
}))
"""
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("told", ["", "glibc.malloc.tcache_count=20"])
def test_the_script_sees_the_environment_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if told:
        monkeypatch.setenv("GLIBC_TUNABLES", told)

    seen = json.loads(supervised(tmp_path, LOOK).stdout)

    assert seen["tunables"] == (told or None)
    assert seen["of a child"] == (told or "None")
    assert seen["ours"] == []


@pytest.mark.skipif(
    not MODE.exists() or "[madvise]" not in MODE.read_text(),
    reason="this kernel does not leave huge pages to programs",
)
@pytest.mark.parametrize("wanted", [True, False])
def test_the_heap_is_in_huge_pages_unless_the_setting_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    setting = f"huge_pages={str(wanted).lower()}"

    seen = json.loads(supervised(tmp_path, LOOK, settings=(setting,)).stdout)

    assert seen["huge"] is wanted
