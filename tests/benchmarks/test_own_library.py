"""No benchmark learns from the user's runs, nor teaches them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHOW = "import os, benchmarks; print(os.environ['SUPERVISOR_CASES'])"


def test_each_benchmark_has_a_case_library_of_its_own(tmp_path: Path) -> None:
    users = str(tmp_path / "cases.sqlite")

    def shown(cases: str) -> str:
        environment = {**os.environ, "SUPERVISOR_CASES": cases}
        return subprocess.run(
            [sys.executable, "-c", SHOW],
            env=environment,
            text=True,
            capture_output=True,
            check=True,
        ).stdout.strip()

    first, second = shown(users), shown(users)

    assert len({users, first, second}) == 3
    assert shown(first) == first  # in what the benchmark starts
    assert not Path(first).parent.exists()
