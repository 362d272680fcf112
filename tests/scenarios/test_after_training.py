"""What a script does when its training is over: wait, upload, become another program."""

from pathlib import Path

import pytest

from tests.scenarios.runs import differences, plain, supervised

TRAINING = """
import os, sys, threading, time, torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
def train(steps=12):
    for step in range(steps):
        x = torch.randn(16, 8)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, loss.item(), flush=True)
    torch.save(net.state_dict(), sys.argv[1])
def upload():
    # until the parent has looked at its stacks: by then it was silent for too long
    stacks = "run/logs/attempt_1/stacks_0.txt"
    while not os.path.exists(stacks) or not os.path.getsize(stacks): time.sleep(0.05)
    time.sleep(1)
    print("uploaded", flush=True)
"""
IMPATIENT = (
    *("watchdog.hang_timeout_s=4", "watchdog.stack_interval_s=0.1"),
    *("watchdog.stack_dumps=1", "checkpoint.every_steps=5"),
)
UPLOADS = {
    "in the script": "train()\nupload()\n",
    "by a pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1)\ntrain()\npool.submit(upload)\n"
    ),
    "at exit": "import atexit\natexit.register(upload)\ntrain()\n",
    "through a queue": (
        "import queue\nq = queue.Queue()\n"
        "def send():\n    while True: q.get(); upload(); q.task_done()\n"
        "threading.Thread(target=send, daemon=True).start()\ntrain()\nq.put(1)\nq.join()\n"
    ),
    "by a child": (
        "import multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=upload)\n"
        "child.start()\ntrain()\n"
    ),
}


def steps_of(stdout: str) -> list[str]:
    return [line for line in stdout.splitlines() if line.startswith("step")]


@pytest.mark.parametrize(
    "how",
    ["in the script", *(pytest.param(h, marks=pytest.mark.exhaustive) for h in list(UPLOADS)[1:])],
)
def test_an_upload_after_the_training_is_no_hang_and_nothing_is_trained_twice(
    tmp_path: Path, how: str
) -> None:
    ended = supervised(tmp_path, TRAINING + UPLOADS[how], settings=IMPATIENT)

    assert ended.returncode == 0, ended.stderr
    assert ended.events("hang_detected") == []
    assert len(steps_of(ended.stdout)) == 12
    assert "uploaded" in ended.stdout


def test_a_thread_that_never_ends_is_ended_in_the_end_and_the_run_is_completed(
    tmp_path: Path,
) -> None:
    viewer = "def view():\n    while True: time.sleep(0.1)\nthreading.Thread(target=view).start()\n"
    script = TRAINING + viewer + "train()\n"

    ended = supervised(
        tmp_path, script, settings=(*IMPATIENT, "watchdog.idle_timeout_s=9"), executed=True
    )

    assert ended.returncode == 0, ended.stderr
    assert len(steps_of(ended.stdout)) == 12
    assert len(ended.events("attempt_started")) == 1
    assert "no training is under way: in view (" in ended.stderr


def test_a_hang_within_the_loop_that_trains_is_still_one(tmp_path: Path) -> None:
    hangs = "        if step == 8 and not os.path.exists('run/logs/attempt_2'):\n" + (
        "            threading.Event().wait()\n"
    )
    script = TRAINING.replace("        print(", hangs + "        print(") + "train()\n"

    ended = supervised(tmp_path, script, settings=IMPATIENT)

    assert ended.returncode == 0, ended.stderr
    assert len(ended.events("hang_detected")) == 1


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_that_the_script_becomes_goes_on_and_its_code_is_the_runs(
    tmp_path: Path, code: int
) -> None:
    becomes = f"train()\nos.execvp('sh', ['sh', '-c', 'ls out.pt; exit {code}'])\n"
    there = plain(tmp_path / "plain", TRAINING + becomes)

    ended = supervised(tmp_path / "run", TRAINING + becomes, executed=True)

    assert ended.returncode == there.returncode == code
    assert ended.stdout == there.stdout
    assert differences(ended.result(), there.result()) == []
    assert "the script has executed sh, which goes on without supervision" in ended.stderr


DAEMON = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
RESPAWNED = (
    "import subprocess, sys\nif len(sys.argv) < 3:\n"
    "    subprocess.Popen([sys.executable, *sys.argv, 'again'], start_new_session=True)\n"
    "    sys.exit(0)\n"
)
WAITS = "import time\ntime.sleep(600)\n"


@pytest.mark.parametrize("how", [DAEMON, pytest.param(RESPAWNED, marks=pytest.mark.exhaustive)])
def test_a_script_in_the_background_is_an_error_that_says_what_to_do(
    tmp_path: Path, how: str
) -> None:
    ended = supervised(tmp_path, how + WAITS + TRAINING + "train()\n", executed=True)

    assert ended.returncode == 70
    assert "script.py went on in the background" in ended.stderr
    assert "nohup supervisor run" in ended.stderr
    assert steps_of(ended.stdout) == []


def test_a_child_that_outlives_a_script_which_trains_nothing_is_not_the_script(
    tmp_path: Path,
) -> None:
    leaves_one = "import os, time\nif os.fork() == 0: time.sleep(600)\nelse: print('converted')\n"

    ended = supervised(tmp_path, leaves_one, executed=True)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "converted\n"
    assert "keep_background=true" in ended.stderr
