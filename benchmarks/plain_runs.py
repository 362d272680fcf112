"""Runs trainings as plain Python does, each in a process of its own, without importing torch anew.

    python -m benchmarks.plain_runs

Takes one JSON object a line (``words``, ``timeout_s``, ``tries``) and answers with one (``code``,
``seconds``). More than one try is the plain loop that starts a script again when it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any


class PlainRuns:
    """The other end, for a benchmark: owns one such process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.plain_runs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, words: list[str], *, tries: int = 1, timeout_s: float = 60.0) -> dict[str, Any]:
        """Returns ``code`` (0 is success) and ``seconds`` of a run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {"words": words, "tries": tries, "timeout_s": timeout_s}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _once(words: list[str], timeout_s: float) -> int:
    from benchmarks.unlucky_training import parse, run

    child = os.fork()
    if child == 0:
        try:
            run(parse(words))
        except BaseException:
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def main() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        started = time.monotonic()
        for _ in range(task["tries"]):
            code = _once(task["words"], task["timeout_s"])
            if code == 0 or (code == -signal.SIGKILL and time.monotonic() - started > 30):
                break
        answer = {"code": code, "seconds": time.monotonic() - started}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # whoever asked is gone
        main()
