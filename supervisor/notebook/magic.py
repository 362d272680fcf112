"""The cell magic ``%%supervise``."""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from supervisor.errors import RunDirectoryError, SupervisorError, UsageError
from supervisor.notebook.launch import LaunchedRun, launch_text
from supervisor.ranks import FIRST_RANK
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader

USAGE = "%%supervise [--policy NAME] [--config NAME] [--set KEY=VALUE ...] [--run-dir PATH]"
PROGRESS_S = 2.0
"""How often the step is shown."""


class CellFailedError(SupervisorError):
    """The cell was not run to its end: "Run all" stops here. A notebook shows the sentence alone.

    Attributes:
        run: what was launched; None if nothing was started.
    """

    def __init__(self, sentence: str, run: LaunchedRun | None = None) -> None:
        super().__init__(sentence)
        self.run = run

    def _render_traceback_(self) -> list[str]:
        return [f"supervisor: error: {self}"]


def supervise(line: str, cell: str) -> LaunchedRun:
    """Runs the cell as a script of its own under supervision; shows the result as a table.

    The cell has no names of other cells: what it needs, it imports, from wherever the notebook can.

    Raises:
        CellFailedError: nothing was started, or the run did not come to its end.
    """
    try:
        with _progress() as begins:
            run = launch_text(cell_script(cell), "cell", begins=begins, **_options(line))
    except SupervisorError as error:
        raise CellFailedError(str(error)) from None
    if run.exit_code:
        told = run.report.get("first_lines") or ["it has no report"]
        raise CellFailedError(f"{told[0]} (exit code {run.exit_code}); {told[-1]}", run)
    return run


def cell_script(cell: str) -> str:
    """Returns the cell as a script that imports what the notebook can, whatever folder it is in.

    The line that does so comes after those that Python wants first.
    """
    paths = list(dict.fromkeys(map(os.path.abspath, ("", *sys.path))))
    with contextlib.suppress(SyntaxError, ValueError):  # is told when it is run
        first = 0
        for place, statement in enumerate(ast.parse(cell).body):
            is_text = place == 0 and isinstance(statement, ast.Expr)
            is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if not (is_text or is_future):
                break
            first = statement.end_lineno or 0
        lines = cell.splitlines(keepends=True)
        if first and not lines[first - 1].endswith("\n"):
            lines[first - 1] += "\n"
        lines.insert(first, f"__import__('sys').path[:0] = {paths}\n")
        return "".join(lines)
    return cell


def load_ipython_extension(ipython: Any) -> None:
    """Called by ``%load_ext supervisor``."""
    ipython.register_magic_function(supervise, magic_kind="cell", magic_name="supervise")


def _options(line: str) -> dict[str, Any]:
    names = {"--policy": "policy", "--config": "config", "--run-dir": "run_dir"}
    found: dict[str, Any] = {"settings": []}
    words = iter(shlex.split(line))
    for word in words:
        value = next(words, None)
        if value is None or (word != "--set" and word not in names):
            raise UsageError(f"%%supervise: {word}: expected {USAGE}")
        if word == "--set":
            found["settings"].append(value)
        else:
            found[names[word]] = value
    return found


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Path], object]]:
    """Shows the newest step below the cell, in one line that changes, while the run goes on.

    Only a notebook can change what it has shown; elsewhere the output that passes by is all.
    """
    ended = threading.Event()
    shown: list[threading.Thread] = []

    def begins(run: Path) -> None:
        handle = _place_to_show()
        if handle is not None:
            thread = threading.Thread(target=_show, args=(run, handle, ended), daemon=True)
            shown.append(thread)
            thread.start()

    try:
        yield begins
    finally:
        ended.set()
        for thread in shown:
            thread.join(PROGRESS_S)


def _show(run: Path, handle: Any, ended: threading.Event) -> None:
    while not ended.wait(PROGRESS_S):
        with contextlib.suppress(Exception):  # no more than a convenience
            handle.update({"text/plain": newest_step(run)}, raw=True)


def newest_step(run: Path) -> str:
    """Returns ``step 1,200, loss 0.31``, or that there is none yet."""
    try:
        with FlightReader(RunDirectory(run).steps(FIRST_RANK)) as reader:
            records = reader.records(max(0, reader.rows() - 1))
    except (OSError, RunDirectoryError):
        records = []
    if not records:
        return "no step yet"
    newest = records[-1]
    loss = f", loss {newest.loss:.4g}" if newest.loss_seen else ""
    return f"step {newest.step:,}{loss}"


def _place_to_show() -> Any:
    """Something that can be updated; None where there is no notebook."""
    with contextlib.suppress(Exception):
        import IPython

        python: Any = IPython
        if getattr(python.get_ipython(), "kernel", None) is not None:
            return python.display.display({"text/plain": "no step yet"}, raw=True, display_id=True)
    return None
