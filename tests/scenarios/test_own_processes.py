"""Scripts that fork, execute themselves, train in a thread or leave without Python's end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.scenarios import runs
from tests.scenarios.runs import Ended, differences, plain

supervised = partial(runs.supervised, executed=True)

TRAIN = """
import os, sys, threading, time
import torch

def train(steps=8):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "out.pt")
"""

WAYS = {
    "leaves by os._exit": "train(); print('end', flush=True); os._exit(0)",
    "trains in a thread": "threading.Thread(target=lambda: (time.sleep(0.5), train())).start()",
    "has an executor left": """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2); pool.submit(train)""",
    "forks a child that ends by sys.exit": """
if os.fork() == 0:
    print("child", flush=True); sys.exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
train()""",
    "forks a child that raises": """
if os.fork() == 0:
    raise ValueError("of the child")
print(os.waitstatus_to_exitcode(os.wait()[1]))
train()""",
    "has its own handler of SIGTERM": """
import signal
print(signal.getsignal(signal.SIGTERM) is handler)
train()""",
}
BEFORE = {
    "has its own handler of SIGTERM": """
import signal
def handler(*_): pass
signal.signal(signal.SIGTERM, handler)
""",
}


def both(folder: Path, text: str) -> tuple[Ended, Ended]:
    return plain(folder / "plain", text), supervised(folder / "supervised", text)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[pytest.mark.exhaustive] if number > 1 else [])
        for number, way in enumerate(WAYS)
    ],
)
def test_what_plain_python_ends_well_is_completed_at_once(way: str, tmp_path: Path) -> None:
    expected, ended = both(tmp_path, BEFORE.get(way, "") + TRAIN + WAYS[way])

    assert expected.returncode == 0, expected.stderr
    assert (ended.returncode, ended.stdout) == (0, expected.stdout), ended.stderr
    assert [event["cause"] for event in ended.events("worker_exited")] == ["completed"]
    assert differences(expected.result(), ended.result()) == []


def test_the_note_of_a_forked_child_is_not_taken_for_the_trainings(tmp_path: Path) -> None:
    text = TRAIN + (
        "if os.fork() == 0: sys.exit(0)\n"
        "os.wait(); train(4)\n"
        "if not os.path.exists('killed'): open('killed', 'w'); os.kill(os.getpid(), 9)\n"
        "train(8)\n"
    )

    ended = supervised(tmp_path, text)

    causes = [event["cause"] for event in ended.events("worker_exited")]
    assert causes == ["killed", "completed"]


@pytest.mark.parametrize(
    "call",
    [
        "os.execv(sys.executable, ",
        pytest.param("os.execvp('python', ", marks=pytest.mark.exhaustive),
    ],
)
def test_a_script_that_executes_itself_with_a_variable_is_supervised(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    text = (
        "import os, sys\n"
        "if os.environ.get('PYTHONHASHSEED') != '7':\n"
        "    os.environ['PYTHONHASHSEED'] = '7'\n"
        f"    {call}[sys.executable, '-u', *sys.argv])\n"
        + TRAIN
        + "train(); print(hash('a'), sys.argv, os.environ['PYTHONHASHSEED'])\n"
        "print(sorted(name for name in os.environ if 'SUPERVISOR_' in name))\n"
    )

    expected, ended = both(tmp_path, text)

    assert (ended.returncode, ended.stdout) == (0, expected.stdout), ended.stderr
    assert len(ended.events("attempt_started")) == 1
    assert ended.events("worker_exited")[0]["last_step"] == 7
    assert differences(expected.result(), ended.result()) == []


def test_an_exit_code_by_os_exit_is_the_runs(tmp_path: Path) -> None:
    ended = supervised(tmp_path, TRAIN + "train(); os._exit(5)")

    assert ended.returncode == 5
    assert len(ended.events("attempt_started")) == 1


EVALUATED_IN_A_THREAD = """
import queue, threading
asked, told = queue.Queue(), queue.Queue()
torch.manual_seed(0); model, copy_ = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def evaluate():
    while (state := asked.get()) is not None:
        copy_.load_state_dict(state)
        with torch.no_grad(): told.put(copy_(torch.ones(8, 4)).abs().mean().item())
thread = threading.Thread(target=evaluate); thread.start(); best = 1e9
for step in range(24):
    x = torch.randn(8, 4); loss = (model(x) - x.sum(1, True)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 3 == 2:
        asked.put({name: value.clone() for name, value in model.state_dict().items()})
        found = told.get()
        if found > best: optimizer.param_groups[0]["lr"] *= 0.5
        best = min(best, found)
asked.put(None); thread.join()
torch.save(model.state_dict(), sys.argv[-1])
"""


def test_a_copy_of_the_model_in_a_thread_that_decides_ends_no_resume(tmp_path: Path) -> None:
    text = "import sys, torch\nfrom torch import nn\n" + EVALUATED_IN_A_THREAD

    ended = supervised(
        tmp_path,
        text,
        settings=("checkpoint.every_steps=4", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 14}]",
        timeout_s=60.0,
    )

    assert ended.returncode == 0, ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["approximate"]


@pytest.mark.parametrize(
    "waits",
    [
        "import threading\nthreading.Thread(target=queue.Queue().get).start()\n",
        pytest.param(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "pool = ThreadPoolExecutor(1); pool.submit(queue.Queue().get)\n",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["a thread", "a pool"],
)
def test_a_thread_that_waits_for_the_training_does_not_keep_a_process_that_is_asked_to_end(
    tmp_path: Path, waits: str
) -> None:
    asks = "    if step == 12: os.kill(os.getpid(), signal.SIGTERM)\n"
    text = (
        "import os, queue, signal, sys, torch\nfrom torch import nn\n"
        + waits
        + "model = nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        + "for step in range(400):\n"
        + asks
        + "    loss = model(torch.randn(8, 4)).pow(2).mean()\n"
        + "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
    )

    ended = supervised(tmp_path, text, executed=True, timeout_s=60.0)

    assert ended.returncode == 75, ended.stderr
    assert ended.events("worker_exited")[0]["signum"] is None
