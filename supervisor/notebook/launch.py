"""Starts a supervised run from a notebook or another program."""

from __future__ import annotations

import builtins
import contextlib
import dis
import hashlib
import html
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from supervisor.errors import SupervisorError, UsageError
from supervisor.storage.files.json_files import read_lines
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.rundir import new_run_directory

TEMPLATE = """import json
import sys

sys.path[:0] = {paths}
{before}

if __name__ == "__main__":
    {name}(**json.loads({arguments}))
"""


def function_script(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    """Returns the text of a script that calls `function` with `arguments`.

    A function of a module is imported there. One of a notebook or of the started program itself is
    copied as it is written, with the imports that it uses; it can use no other name from outside.

    Raises:
        UsageError: it needs more than its own text and modules, or an argument is not JSON.
    """
    name = function.__name__
    try:
        told = json.dumps(dict(arguments))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"launch: arguments of {name}: {error}: give numbers, texts, lists and dicts"
        ) from error
    if function.__module__ != "__main__":
        before = f"from {function.__module__} import {name}"
    else:
        before = "\n".join([*_imports(function), "", _text(function)])
    paths = [os.path.abspath(path) for path in sys.path]
    return TEMPLATE.format(paths=paths, before=before, name=name, arguments=repr(told))


def _text(function: Callable[..., object]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise UsageError(
            f"launch: {function.__name__}: its text cannot be found: write it in a cell or a module"
        ) from error


def _imports(function: Callable[..., object]) -> Iterator[str]:
    """One line for each module, class and function that is used from outside."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or function.__name__ == "<lambda>":
        raise UsageError(f"launch: {function.__name__}: expected a function written with `def`")
    if code.co_freevars:
        raise UsageError(
            f"launch: {function.__name__}: uses {', '.join(code.co_freevars)} of the function "
            "around it: give them as arguments"
        )
    outside = getattr(function, "__globals__", {})
    for name in sorted(set(_global_names(code))):
        if name not in outside or name == function.__name__:
            continue  # of python itself, or assigned by the function
        yield _import_of(name, outside[name], function.__name__)


def _import_of(name: str, value: object, used_by: str) -> str:
    if isinstance(value, ModuleType):
        return (
            f"import {value.__name__} as {name}"
            if "." in value.__name__ or (value.__name__ != name)
            else f"import {name}"
        )
    home, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if home in (None, "__main__", builtins.__name__) or "." in own_name or not own_name:
        raise UsageError(
            f"launch: {used_by}: uses {name}, which only this notebook or program has: define it "
            "inside the function, give it as an argument, or put both into a module"
        )
    return f"from {home} import {own_name} as {name}"


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


@dataclass(frozen=True, slots=True)
class LaunchedRun:
    """A run that has ended; a notebook shows it as a small table.

    Attributes:
        directory: the run directory.
        exit_code: of `supervisor run` (docs/commands.md): 0 is completed.
    """

    directory: Path
    exit_code: int

    @property
    def report(self) -> dict[str, Any]:
        """The report as data (docs/report.md); empty if there is none."""
        try:
            found = json.loads(
                (self.directory / "report" / "report.json").read_text(encoding="utf-8")
            )
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def verdict(self) -> str:
        """The report's first sentences; "" without a report."""
        return str(self.report.get("verdict", ""))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The journal's lines (docs/architecture.md), oldest first."""
        return read_lines(self.directory / "events.jsonl")

    @property
    def report_html(self) -> Path:
        """The report as one offline page."""
        return self.directory / "report" / "report.html"

    def _repr_html_(self) -> str:
        return _table(
            {
                "exit code": str(self.exit_code),
                "verdict": self.verdict or "no report",
                "report": str(self.report_html) if self.report_html.exists() else "",
                "run": str(self.directory),
            }
        )


def _table(rows: Mapping[str, str]) -> str:
    cells = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows.items()
        if value
    )
    return f"<table>{''.join(cells)}</table>"


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
    begins: Callable[[Path], object] = lambda _: None,
) -> LaunchedRun:
    """Runs a script given as text; else as `launch`. `begins` is told the run directory."""
    directory = new_run_directory(name) if run_dir is None else Path(run_dir)
    begins(directory)
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
        start_new_session=True,  # the stop button reaches it through us alone
    ) as process:
        if process.stdout is None:
            raise SupervisorError("no output of `supervisor run`: report this")
        # A progress bar goes back to the line's beginning: it is passed on as it is.
        lines = io.TextIOWrapper(process.stdout, errors="replace", newline="")
        while True:
            try:
                for shown in lines:
                    print(shown, end="", flush=True)
                    last = shown.strip() or last
                return process.wait(), last
            except KeyboardInterrupt:
                process.send_signal(signal.SIGTERM)
