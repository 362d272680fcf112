"""Signals from schedulers and people, and those that scripts use themselves."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.scenarios import runs
from tests.scenarios.runs import again, differences, plain, train_plainly

# The parent above the subreaper is the supervisor only where the worker is executed.
supervised = partial(runs.supervised, executed=True, settings=("checkpoint.every_steps=7",))

TRAIN = """
import os, signal, sys, threading, time
import psutil, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1); optimizer = torch.optim.Adam(model.parameters(), 0.05)
SUPERVISED = "subreaper.py" in " ".join(psutil.Process(os.getppid()).cmdline())

def train(step):
    torch.manual_seed(step)
    loss = (model(torch.randn(8, 4)) - 1.0).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()

def tell_supervisor(signum, also_us=False):
    "As a scheduler does: from another process, to the supervisor, or to every process of the job."
    # Hidden: another file that is written after the checkpoint is put aside by the resume.
    if SUPERVISED and not os.path.exists(".told"):
        open(".told", "w").close()
        pids = [psutil.Process(os.getppid()).ppid(), *([os.getpid()] if also_us else [])]
        os.system(f"kill -{int(signum)} {' '.join(map(str, pids))}")
        return True

def wait_for(what):
    until = time.monotonic() + 60
    while not what and time.monotonic() < until: time.sleep(0.01)
"""
END = 'torch.save(model.state_dict(), "out.pt")\n'
SAVES_AND_LEAVES = """
calls = []
signal.signal(signal.{name}, lambda *_: calls.append(1))
for step in range(40):
    train(step)
    if step == 20 and tell_supervisor(signal.{name}, also_us={also_us}): wait_for(calls)
    if calls:
        time.sleep(1.0); torch.save(model.state_dict(), "saved.pt")
        print(len(calls), "calls"); break
"""


@pytest.mark.parametrize(
    ("name", "also_us", "cause"),
    [
        ("SIGTERM", True, "interrupted"),
        pytest.param("SIGUSR1", False, "preempted", marks=pytest.mark.exhaustive),
        pytest.param("SIGUSR2", True, "preempted", marks=pytest.mark.exhaustive),
    ],
)
def test_a_handler_that_saves_and_leaves_cleanly_has_not_completed_the_training(
    name: str, also_us: bool, cause: str, tmp_path: Path
) -> None:
    text = TRAIN + SAVES_AND_LEAVES.format(name=name, also_us=also_us) + END
    expected = train_plainly(tmp_path / "plain", text)

    stopped = supervised(tmp_path / "run", text)
    saved = (stopped.folder / "saved.pt").exists()
    resumed = again(stopped, "run", "--or-resume", "--run-dir", "run", "script.py", "out.pt")

    assert stopped.returncode == 75, stopped.stderr
    assert saved
    assert stopped.stdout == "1 calls\n"
    assert stopped.events("worker_exited")[0]["cause"] == cause
    assert resumed.returncode == 0, resumed.stderr
    assert [e["exactness"] for e in resumed.events("resumed")] == ["exact"]
    assert differences(expected.result(), resumed.result()) == []


def test_a_handler_that_saves_and_lets_the_training_go_on_changes_nothing(tmp_path: Path) -> None:
    text = (
        TRAIN
        + """
calls = []
signal.signal(signal.SIGUSR1, lambda *_: calls.append(time.time()))
for step in range(40):
    train(step)
    if step == 10 and tell_supervisor(signal.SIGUSR1):
        wait_for(calls); time.sleep(2.0)  # longer than watchdog.grace_s
"""
        + END
    )
    expected = train_plainly(tmp_path / "plain", text)

    ended = supervised(tmp_path / "run", text, settings=("watchdog.grace_s=1",))

    assert ended.returncode == 0, ended.stderr
    assert ended.events("signal_received")[0]["grace_s"] is None
    assert differences(expected.result(), ended.result()) == []


def test_ctrl_c_raises_in_the_script_which_saves(tmp_path: Path) -> None:
    text = (
        TRAIN
        + """
try:
    for step in range(40):
        train(step)
        if step == 20 and tell_supervisor(signal.SIGINT): time.sleep(60)
except KeyboardInterrupt:
    torch.save(model.state_dict(), "saved.pt"); print("saved")
"""
        + END
    )

    stopped = supervised(tmp_path, text)

    assert (stopped.returncode, stopped.stdout) == (75, "saved\n"), stopped.stderr
    assert "the script ended itself" in stopped.events("worker_exited")[0]["evidence"][0]


OWN = """
names = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGCHLD", "SIGALRM")
print([signal.getsignal(getattr(signal, name)) for name in names])
for step in range(5): train(step)
seen = []
def handler(signum, frame): seen.append(signum)
for name in names:
    number = getattr(signal, name)
    print(signal.signal(number, handler), signal.getsignal(number) is handler)
    os.kill(os.getpid(), number)
print(seen, signal.set_wakeup_fd(-1))
print(signal.signal(signal.SIGTERM, signal.SIG_DFL) is handler, signal.getsignal(signal.SIGTERM))
signal.signal(signal.SIGINT, signal.default_int_handler)
try: signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt: print("ctrl-c", signal.getsignal(signal.SIGINT))
for number in (999, "x", 3.5):
    try: print(signal.signal(number, handler))
    except Exception as error: print(type(error), error)
child = os.fork()
if not child: time.sleep(60)
os.kill(child, signal.SIGTERM); print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_script_has_its_signals_for_itself(tmp_path: Path) -> None:
    text = TRAIN + OWN + END
    expected = plain(tmp_path / "plain", text)

    ended = supervised(tmp_path / "run", text)

    assert expected.returncode == 0, expected.stderr
    assert (ended.returncode, ended.stdout) == (0, expected.stdout), ended.stderr
    assert [e["cause"] for e in ended.events("worker_exited")] == ["completed"]


def test_a_hang_is_looked_into_without_a_signal_of_the_scripts(tmp_path: Path) -> None:
    text = (
        TRAIN
        + """
signal.signal(signal.SIGUSR2, lambda *_: (print("called", flush=True), sys.exit(0)))
for step in range(20):
    train(step)
"""
        + END
    )
    expected = train_plainly(tmp_path / "plain", text)

    ended = supervised(
        tmp_path / "run",
        text,
        settings=(
            *("checkpoint.every_steps=7", "watchdog.hang_timeout_s=2"),
            "watchdog.stack_interval_s=0.2",
        ),
        faults="[{kind: hang, step: 12}]",
    )

    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "script.py" in str(ended.events("hang_detected")[0]["frames"])
    assert differences(expected.result(), ended.result()) == []


def test_an_exception_is_the_cause_although_a_thread_keeps_the_process(tmp_path: Path) -> None:
    text = (
        TRAIN
        + "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        + "for step in range(8): train(step)\nraise ValueError('of the script')\n"
    )

    ended = supervised(
        tmp_path,
        text,
        settings=("watchdog.grace_s=1", "watchdog.hang_timeout_s=3", "restart.crash_limit=1"),
    )

    assert ended.returncode == 70
    assert [e["cause"] for e in ended.events("worker_exited")] == ["exception"]
    note = (ended.run_dir / "exits" / "attempt_1" / "rank_0.json").read_text()
    assert "raise ValueError('of the script')" in note


def test_what_a_script_sends_itself_is_told_and_leaves_no_data_out(tmp_path: Path) -> None:
    text = TRAIN + "for step in range(30):\n    train(step)\n    if step == 20: os.abort()\n"

    ended = runs.supervised(tmp_path, text)

    assert ended.returncode == 70
    told = {e["evidence"][0] for e in ended.events("worker_exited")}
    assert told == {"SIGABRT, which the process sent to itself"}
    assert ended.actions() == []


@pytest.mark.parametrize(
    "text",
    [
        TRAIN
        + "for step in range(8): train(step)\n"
        + "with torch.no_grad(): model.weight[0, 0] = float('nan')\n",
        "def main():\n"
        + "".join(f"    {line}\n" for line in TRAIN.replace("as a", "").splitlines())
        + "    for step in range(30):\n"
        + "        loss = model(torch.ones(8, 4)).mean()\n"
        + "        if step > 20: loss = loss * float('nan')\n"
        + "        optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
        + "main()\n",
    ],
    ids=["the model lives", "the model is gone"],
)
def test_an_end_with_weights_that_are_not_finite_is_no_completion(
    text: str, tmp_path: Path
) -> None:
    ended = runs.supervised(tmp_path, text, options=("--policy", "observe_only"))

    assert ended.returncode == 70, ended.stderr
    assert "not finite" in ended.events("gave_up")[0]["reason"]


def test_an_end_that_is_still_sick_with_its_budget_spent_is_no_completion(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "defaults: [default]\nbudget: {per_run: 1}\nguard: {trial_step: false}\nby_cause: {}\n"
        "rungs: [{at: 0.3, actions: [checkpoint]}, {at: 0.5, actions: [cut_lr]}]\n"
    )
    text = (
        TRAIN.replace("Adam(model.parameters(), 0.05)", "SGD(model.parameters(), 0.01)")
        + """
for step in range(160):
    train(step)
    if step >= 60:  # the script ruins its own weights, more at each step
        with torch.no_grad(): model.weight += 0.2 * (step - 59)
"""
        + END
    )

    ended = supervised(tmp_path, text, options=("--policy", "policy.yaml"))

    assert ended.returncode == 70, ended.stderr
    assert "budget of treatments is spent" in ended.events("gave_up")[0]["reason"]
