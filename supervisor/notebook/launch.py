"""Starts a supervised run from a notebook or another program."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.errors import SupervisorError, UsageError
from supervisor.notebook.function_script import function_script
from supervisor.notebook.launched_run import LaunchedRun
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.new_run_directory import new_run_directory

REFUSED = 64
"""Exit code of `supervisor run` if nothing was started."""


def launch(
    function: Callable[..., object],
    arguments: Mapping[str, Any] | None = None,
    *,
    policy: str = "default",
    config: str = "default",
    settings: Sequence[str] = (),
    run_dir: str | os.PathLike[str] | None = None,
) -> LaunchedRun:
    """Runs `function(**arguments)` under supervision, in a process of its own, and waits for it.

    Called in a notebook or a program, never within a supervised training. Output comes through as
    it is printed. An interruption (Ctrl-C, the notebook's stop button) saves a checkpoint first.

    Args:
        function: written with `def`; in a notebook it imports what it needs, or uses modules that
            the notebook has imported.
        arguments: JSON: numbers, texts, lists, dicts.
        policy: a shipped name or a file, as in `supervisor run`.
        config: likewise.
        settings: ``KEY=VALUE``, as `--set`.
        run_dir: a new folder; default: ``runs/<function>-<time>``.

    Raises:
        UsageError: `function` cannot be taken over, or nothing was started.
    """
    text = function_script(function, arguments or {})
    return launch_text(
        text, function.__name__, policy=policy, config=config, settings=settings, run_dir=run_dir
    )


def launch_text(
    text: str,
    name: str,
    *,
    policy: str = "default",
    config: str = "default",
    settings: Sequence[str] = (),
    run_dir: str | os.PathLike[str] | None = None,
) -> LaunchedRun:
    """Runs a script given as text; else as `launch`."""
    directory = new_run_directory(name) if run_dir is None else Path(run_dir)
    script = _written(text, name, directory.parent)
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", str(directory)]
    line += ["--policy", policy, "--config", config]
    line += [word for one in settings for word in ("--set", one)]
    code, told = _passed_through([*line, str(script)])
    if code == REFUSED:
        if run_dir is None:
            with contextlib.suppress(OSError):
                directory.rmdir()  # nothing was started in it
        raise UsageError(told.removeprefix("supervisor: error: "))
    return LaunchedRun(directory, code)


def _written(text: str, name: str, folder: Path) -> Path:
    """Writes the script where a resume finds it: equal texts share one file."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    home = folder / ".launched"
    path = home / f"{name}-{digest}.py"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            write_private(path, text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: give a run_dir that can be written") from error
    return path


def _passed_through(line: Sequence[str]) -> tuple[int, str]:
    """Runs a command and prints its lines; returns its exit code and its last line."""
    last = ""
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # the stop button reaches it through us alone
    ) as process:
        if process.stdout is None:
            raise SupervisorError("no output of `supervisor run`: report this")
        while True:
            try:
                for shown in process.stdout:
                    print(shown, end="", flush=True)
                    last = shown.strip() or last
                return process.wait(), last
            except KeyboardInterrupt:
                process.send_signal(signal.SIGTERM)
