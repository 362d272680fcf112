"""What a script can see of its process, under `supervisor run` and with plain python."""

from __future__ import annotations

import fnmatch
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.own_process import command

PROBE = Path(__file__).with_name("interpreter_probe.py")
PAGE = Path(__file__).parents[2] / "docs" / "plain_python.md"
ONCE = ("report.enabled=false", "restart.crash_limit=1", "checkpoint.every_steps=1")
OURS = re.compile(r"^(?:supervisor: .*|\(supervisor: .*)\n", re.MULTILINE)


def environment(folder: Path) -> dict[str, str]:
    theirs = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SUPERVISOR_", "PYTHON", "GLIBC_"))
    }
    cases = {"SUPERVISOR_CASES": str(folder / "cases.sqlite")}
    return {**theirs, **cases, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def supervised_line(*words: str) -> list[str]:
    chosen = [f"--set={setting}" for setting in ONCE]
    return [*command("supervisor.cli.main"), "run", "--quiet", "--run-dir", "run", *chosen, *words]


def run(folder: Path, line: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line,
        cwd=folder,
        env=environment(folder),
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c() -> None:
    """Shells start background jobs with SIGINT ignored, and so would plain python be here."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_in_terminal(folder: Path, line: list[str]) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        line,
        cwd=folder,
        env=environment(folder),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=heed_ctrl_c,
    ) as process:
        os.close(theirs)
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass  # the last holder of the terminal closed it
    os.close(ours)
    assert process.returncode == 0


def prepared(folder: Path) -> Path:
    """A project with the probe in all its forms, and a module that hides one of Python's."""
    (folder / "package").mkdir(parents=True)
    (folder / "bin").mkdir()
    for target in ("probe.py", "package/__main__.py", "package/probe.py"):
        shutil.copy(PROBE, folder / target)
    (folder / "package" / "__init__.py").touch()
    (folder / "bin" / "train").symlink_to("../probe.py")
    for name in ("trace", "lzma", "probe_neighbour"):
        (folder / f"{name}.py").write_text(f"NAME = {name!r}\n")
    (folder / "supervisor").mkdir()  # the name of ours, in the directory in which it is run
    (folder / "supervisor" / "__init__.py").write_text("raise ImportError('of the project')")
    return folder


FORMS = {
    "script": ["probe.py", "out.json", "torch"],
    "module": ["-m", "package.probe", "out.json"],
    "package": ["-m", "package", "out.json"],
    "a link without suffix": ["bin/train", "out.json"],
}


def seen(folder: Path, *, terminal: bool, line: list[str]) -> dict[str, Any]:
    if terminal:
        run_in_terminal(folder, line)
    else:
        ended = run(folder, line)
        assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


def compare(folder: Path, words: list[str], *, terminal: bool = False) -> dict[str, Any]:
    prepared(folder)
    plain = seen(folder, terminal=terminal, line=[sys.executable, *words])
    ours = seen(folder, terminal=terminal, line=supervised_line(*words))
    return {
        name: (plain.get(name), ours.get(name))
        for name in plain.keys() | ours.keys()
        if plain.get(name) != ours.get(name)
    }


ROWS = {
    "string hashes": ("hash.*", "sys.flags.hash_randomization"),
    "standard output": ("*.stdout.line_buffering",),
    "frames below": ("frames.*",),
    "`warnings.filters`": ("*.warnings.filters",),
    "`sys.modules`": ("sys.modules",),
    "`sys.meta_path`": ("*.sys.meta_path",),
    "built-in functions": (
        *("*.builtins.open", "torch.os.*", "trained.os.*", "*.os._exit", "*.os.exec*"),
        "*.os.fork",
    ),
    "signals": ("*.signal.caught", "fork"),
    "open files": ("*.open_files", "*.next_descriptor"),
    "threads": ("trained.threads",),
    "session": ("process.leads_*",),
    "the process": ("process.command", "process.parent"),
}
"""Beginning of a row of the page's table → what the probe calls this."""


def documented() -> list[str]:
    """The patterns of the rows that the page's table has."""
    page = PAGE.read_text(encoding="utf-8")
    return [name for row, names in ROWS.items() if f"\n| {row}" in page for name in names]


def unlisted(differences: dict[str, Any]) -> dict[str, Any]:
    patterns = documented()
    return {
        name: values
        for name, values in differences.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


@pytest.mark.parametrize("form", [f for f in FORMS if f != "script"])
def test_every_form_sees_only_the_documented_differences(form: str, tmp_path: Path) -> None:
    assert unlisted(compare(tmp_path / "project", FORMS[form])) == {}


def test_in_a_terminal_only_the_documented_differences_are_seen(tmp_path: Path) -> None:
    differences = compare(tmp_path / "project", ["probe.py", "out.json"], terminal=True)

    assert "`input` at a terminal" in PAGE.read_text(encoding="utf-8")
    assert {name for name in unlisted(differences) if not name.endswith(".builtins.input")} == set()


def test_the_table_of_differences_is_complete_and_holds(tmp_path: Path) -> None:
    differences = compare(tmp_path / "project", FORMS["script"])

    assert unlisted(differences) == {}
    stale = [p for p in documented() if not any(fnmatch.fnmatchcase(n, p) for n in differences)]
    assert stale == []


UNCAUGHT = {
    "python's own hook": "def f(): return {}['a']\nf()",
    "a hook of the script's": """
        import sys, traceback
        def hook(kind, error, trace):
            print("told:", kind.__name__, error, sys.last_value is error)
            print([frame.name for frame in traceback.extract_tb(trace)])
        sys.excepthook = hook
        def f(): raise ValueError("bad")
        f()""",
    "a hook that fails": """
        import sys
        def hook(*_): {}["of the hook"]
        sys.excepthook = hook
        raise ValueError("bad")""",
    "a hook that exits": """
        import sys
        sys.excepthook = lambda *_: sys.exit("the hook's own words")
        raise ValueError("bad")""",
    "no hook": "import sys\ndel sys.excepthook\nraise ValueError('bad')",
    "an exception without words": """
        class Mute(Exception):
            def __str__(self): raise ValueError("no words")
        raise Mute""",
    "a chain": """
        try:
            {}["first"]
        except KeyError as error:
            raise RuntimeError("second") from error""",
    "while another is handled": """
        try:
            {}["first"]
        except KeyError:
            [][3]""",
    "a syntax error": "def broken(:\n    pass",
    "a syntax error in an import": """
        open("neighbour.py", "w").write("x = = 1")
        import neighbour""",
    "ctrl-c": "raise KeyboardInterrupt('by the script')",
    "a thread": """
        import threading
        def work(): raise ValueError("in a thread")
        thread = threading.Thread(target=work, name="worker")
        thread.start(); thread.join()
        threading.excepthook = lambda args: print("told:", args.exc_type, args.thread.name)
        thread = threading.Thread(target=work, name="worker"); thread.start(); thread.join()""",
    "an exception that nobody can raise": """
        import sys
        class Bad:
            def __del__(self): raise ValueError("in __del__")
        Bad()
        sys.unraisablehook = lambda told: print("told:", told.exc_value)
        Bad()""",
    "the end in order": """
        import atexit, sys, threading, time
        atexit.register(print, "at exit")
        def work(): time.sleep(0.7); print("the thread ends")
        threading.Thread(target=work).start()
        sys.excepthook = lambda *_: print("the hook")
        raise ValueError("bad")""",
}


@pytest.mark.parametrize("kind", UNCAUGHT)
def test_what_nobody_caught_is_told_as_with_plain_python(kind: str, tmp_path: Path) -> None:
    lines = UNCAUGHT[kind].splitlines()
    (tmp_path / "train.py").write_text("\n".join(line.removeprefix(" " * 8) for line in lines))

    plain = run(tmp_path, [sys.executable, "train.py"])
    ours = run(tmp_path, supervised_line("train.py"))

    assert ours.stdout == plain.stdout
    assert without_addresses(OURS.sub("", ours.stderr)) == without_addresses(plain.stderr)


def test_a_failure_in_the_midst_of_training_shows_none_of_our_frames(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        if self.calls == 5: raise ValueError('bad batch')\n"
        "        return super().forward(x)\n"
        "model = Net(2, 2); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(torch.ones(3, 2)).sum(); loss.backward()\n"
        "    return loss\n"
        "for _ in range(9): optimizer.step(closure)\n"
    )

    plain = run(tmp_path, [sys.executable, "train.py"])
    ours = run(tmp_path, supervised_line("train.py"))

    assert "bad batch" in plain.stderr
    assert OURS.sub("", ours.stderr) == plain.stderr


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def test_what_the_script_starts_hashes_as_with_plain_python_but_loader_workers_agree(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import multiprocessing, os, subprocess, sys, torch\n"
        "def told(queue): queue.put((hash('a'), os.environ.get('PYTHONHASHSEED')))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn'); queue = context.Queue()\n"
        "    child = context.Process(target=told, args=(queue,)); child.start()\n"
        "    print(queue.get()[0] == hash('a')); child.join()\n"
        "    code = 'import os; print(os.environ.get(\"PYTHONHASHSEED\"))'\n"
        "    print(os.environ.get('PYTHONHASHSEED'), flush=True)\n"
        "    subprocess.run([sys.executable, '-c', code])\n"
    )

    ours = run(tmp_path, supervised_line("train.py"))

    assert ours.stdout == "True\nNone\nNone\n", ours.stderr
