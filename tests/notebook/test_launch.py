"""A function under supervision from another program, and a cell of a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import supervisor
from supervisor.errors import UsageError
from supervisor.notebook.launch import function_script
from supervisor.notebook.magic import cell_script, newest_step
from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import make_run, seen
from tests.notebook import a_module
from tests.notebook.a_module import train
from tests.scenarios.runs import differences

QUICK = ("report.plots=false", "restart.backoff_s=0.05")
NOTEBOOK = """
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_line_magic("load_ext", "supervisor")
cell = '''import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(4):
    optimizer.zero_grad(); weight.square().sum().backward(); optimizer.step()
print("sum", float(weight.sum()))
'''
result = shell.run_cell_magic("supervise", "--run-dir run --set report.enabled=true", cell)
print(result._repr_html_())
print("first event:", result.events[0]["kind"])
for options in ("--polcy x", "--policy nosuch --run-dir other"):
    try:
        shell.run_cell_magic("supervise", options, cell)
    except Exception as error:
        print(*error._render_traceback_())
ended = shell.run_cell("%%supervise --run-dir fails --set restart.crash_limit=1\\n"
    "'text'\\nfrom __future__ import annotations\\nimport beside\\n"
    "print(open('data.txt').read(), beside.VALUE)\\nraise SystemExit(3)")
print("success:", ended.success, type(ended.error_in_exec).__name__, ended.error_in_exec)
"""


def test_a_function_is_run_killed_and_resumed_and_its_run_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train(20, "plain.pt")

    run = supervisor.launch(
        train,
        {"steps": 20, "out": "supervised.pt"},
        settings=(
            *QUICK,
            "checkpoint.every_steps=5",
            "checkpoint.background=false",
            "faults=[{kind: sigkill, step: 12}]",
        ),
    )

    assert run.exit_code == 0
    assert run.directory.parent == Path("runs")
    assert "resumed" in [event["kind"] for event in run.events]
    assert "ran to its end at step 19, after 1 restart" in run.verdict
    ends = [torch.load(name, weights_only=True) for name in ("plain.pt", "supervised.pt")]
    assert differences(*ends) == []
    assert "step" in capsys.readouterr().out


def test_what_cannot_be_started_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=r"^no policy is called 'nosuch'"):
        supervisor.launch(train, {"steps": 1, "out": "x"}, policy="nosuch")

    assert [path.name for path in Path("runs").iterdir()] == [".launched"]


def test_a_cell_is_supervised_and_shown_as_a_table(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    (tmp_path / "beside.py").write_text("VALUE = 'beside the notebook'\n")
    (tmp_path / "data.txt").write_text("in the working directory")

    ended = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], cwd=tmp_path, capture_output=True, text=True
    )

    assert ended.returncode == 0, ended.stderr
    assert "sum " in ended.stdout
    assert "<tr><th>exit code</th><td>0</td></tr>" in ended.stdout
    assert "report.html</td>" in ended.stdout
    assert "first event: run_started" in ended.stdout
    assert "%%supervise: --polcy: expected %%supervise [--policy NAME]" in ended.stdout
    assert "supervisor: error: no policy is called" in ended.stdout
    assert "in the working directory beside the notebook" in ended.stdout
    assert "success: False CellFailedError failed" in ended.stdout
    assert "(exit code 3); next: mend the script, then supervisor resume" in ended.stdout


PROGRAM = """
import math, os.path as places
from collections import Counter as Count

LIMIT = 3

def good(name, times=2):
    import json
    def inner():
        return Count(name), math.pi > times, places.basename("a/b")
    print(json.dumps(str(inner())))

def bad():
    return LIMIT

def outer():
    inside = 1
    def closure():
        return inside
    return closure

from supervisor.notebook.launch import function_script
from supervisor.errors import UsageError
print(function_script(good, {"name": "aab"}))
for function, arguments in ((bad, {}), (outer(), {}), (lambda: 1, {}), (good, {"name": {1}})):
    try:
        function_script(function, arguments)
    except UsageError as error:
        print(error, file=__import__("sys").stderr)
"""


def test_the_text_and_the_imports_of_a_programs_own_function_are_taken_over(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    told = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=True
    )
    (tmp_path / "script.py").write_text(told.stdout)

    ran = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "\"(Counter({'a': 2, 'b': 1}), True, 'b')\"\n"
    uses_a_value, uses_what_is_around, has_no_name, no_json = told.stderr.splitlines()
    assert "bad: uses LIMIT, which only this notebook or program has" in uses_a_value
    assert "closure: uses inside of the function around it" in uses_what_is_around
    assert "expected a function written with `def`" in has_no_name
    assert "arguments of good: Object of type set is not JSON serializable" in no_json


def test_a_function_of_a_module_is_imported() -> None:
    text = function_script(a_module.train, {"steps": 1, "out": "x"})

    assert "from tests.notebook.a_module import train" in text
    with pytest.raises(UsageError, match="arguments of train"):
        function_script(a_module.train, {"steps": object()})


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("import a", 0),
        ("", 0),
        ("from __future__ import annotations\nx = 1", 1),
        ('"""What it does\n\nat length."""\nfrom __future__ import annotations\n\nx = 1\n', 4),
        ("'text'", 1),
        ("# nothing\n\nfor _ in []:\n    pass", 0),
    ],
)
def test_a_cell_can_import_what_the_notebook_can(
    cell: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    script = cell_script(cell)

    added = script.splitlines()[place]
    assert added.startswith("__import__('sys').path[:0] = ")
    assert str(tmp_path) in added
    compile(script, "cell", "exec")
    rest = script.splitlines()[:place] + script.splitlines()[place + 1 :]
    assert rest == cell.splitlines()


def test_a_cell_that_is_no_python_is_left_as_it_is() -> None:
    assert cell_script("import a b") == "import a b"


def test_the_newest_step_is_shown_while_a_cell_runs(tmp_path: Path) -> None:
    assert newest_step(tmp_path) == "no step yet"

    make_run(tmp_path, RunState(state="running"), (seen(0, 2.0), seen(1200, 0.3125)))

    assert newest_step(tmp_path) == "step 1,200, loss 0.3125"
