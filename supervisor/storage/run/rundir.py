"""Every path of a run directory, in one place.

A folder for a run that was given none.

Files into which the terminals of a run's parents go (`supervisor run ... > log.txt`).

What stands there was printed: it is no state of the script, though it changes while it runs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
from pathlib import Path

from supervisor.errors import UsageError
from supervisor.storage.files.private_files import make_private, write_private


class RunDirectory:
    """The layout of one run's directory.

    Folders are created private to the user (0700); writers take care of their files' modes.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def lease(self) -> Path:
        """Who supervises the run now; renewed by the parent."""
        return self.root / "lease.json"

    @property
    def lease_lock(self) -> Path:
        return self.root / "lease.lock"

    @property
    def run_json_copy(self) -> Path:
        """Without it a damaged ``run.json`` would be the end of the run."""
        return self.root / ".run.json.copy"

    @property
    def policy_yaml(self) -> Path:
        return self.root / "policy.yaml"

    @property
    def config_yaml(self) -> Path:
        return self.root / "config.yaml"

    @property
    def journal(self) -> Path:
        return self.root / "events.jsonl"

    def rank_journal(self, rank: int) -> Path:
        return self.root / "events" / f"rank_{rank}.jsonl"

    def steps(self, rank: int) -> Path:
        return self.root / "steps" / f"rank_{rank}.steps"

    def replay_log(self, rank: int) -> Path:
        """What a fast-forward needs to know about the steps before a checkpoint."""
        return self.root / "tape" / f"rank_{rank}.tape"

    def outside(self, rank: int) -> Path:
        """What the script has drawn from the system's entropy and clocks."""
        return self.replay_log(rank).with_suffix(".outside")

    def alive(self, rank: int) -> Path:
        """Where a worker counts what is progress but no step: batches, evaluation, checkpoints."""
        return self.root / "alive" / f"rank_{rank}"

    def places(self, rank: int) -> Path:
        """Where a rank notes where in its code it has trained."""
        return self.alive(rank).with_suffix(".places")

    def signals(self, rank: int) -> Path:
        """Where a rank tells what it was sent, and on which signal it writes its stacks."""
        return self.alive(rank).with_suffix(".signals")

    def collectives(self, rank: int) -> Path:
        """Where a rank counts the collectives that it has entered."""
        return self.alive(rank).with_suffix(".collectives")

    def replayed(self, rank: int) -> Path:
        """Where a worker counts the steps of its fast-forward."""
        return self.alive(rank).with_suffix(".replay")

    def trail(self, rank: int) -> Path:
        """Digests of the state at every step, if the config asks for them."""
        return self.root / "trail" / f"rank_{rank}.jsonl"

    @property
    def nodes(self) -> Path:
        """Where nodes see whether they share this directory."""
        return self.root / "nodes"

    @property
    def terminals(self) -> Path:
        """Which files the parents' terminals are."""
        return self.root / "terminals"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}"

    def anomalies(self, rank: int) -> Path:
        return self.root / "anomalies" / f"anomalies_rank_{rank}.jsonl"

    def inspections(self, rank: int) -> Path:
        """What a replay has seen of single steps."""
        return self.root / "inspections" / f"rank_{rank}"

    @property
    def captures(self) -> Path:
        return self.root / "anomalies" / "data"

    @property
    def alerts(self) -> Path:
        return self.root / "alerts.jsonl"

    def log(self, attempt: int, rank: int) -> Path:
        return self.root / "logs" / f"attempt_{attempt}" / f"rank_{rank}.log"

    def stacks(self, attempt: int, rank: int) -> Path:
        """Where faulthandler writes the stacks of a hang."""
        return self.root / "logs" / f"attempt_{attempt}" / f"stacks_{rank}.txt"

    def records(self, attempt: int, rank: int) -> Path:
        """Where torch's records of a rank's last collectives are, once its stacks are asked for."""
        return self.root / "logs" / f"attempt_{attempt}" / f"collectives_{rank}.json"

    def nccl_trace(self, attempt: int) -> Path:
        """What NCCL's own dumps begin with; the rank's number follows."""
        return self.root / "logs" / f"attempt_{attempt}" / "nccl_trace_rank_"

    def mailbox(self, attempt: int, node: int) -> Path:
        """By which the ranks of a node agree on each step of an attempt."""
        return self.root / "board" / f"attempt_{attempt}_node_{node}"

    def rank_notes(self, attempt: int, node: int) -> Path:
        """What the ranks of a node have exchanged in an attempt, for each other."""
        return self.root / "board" / f"attempt_{attempt}_node_{node}.notes"

    def mistakes(self, attempt: int) -> Path:
        """Where the ranks of a node leave what they hold in their first updates."""
        return self.root / "board" / f"attempt_{attempt}_mistakes"

    def exit_note(self, attempt: int, rank: int) -> Path:
        return self.root / "exits" / f"attempt_{attempt}" / f"rank_{rank}.json"

    def order(self, attempt: int) -> Path:
        return self.root / "orders" / f"attempt_{attempt}.json"

    @property
    def cases(self) -> Path:
        """What the case library knew when the run began."""
        return self.root / "cases.json"

    @property
    def aside(self) -> Path:
        """The script's files that a fast-forward has set aside."""
        return self.root / "aside"

    @property
    def script_files(self) -> Path:
        """Contents of the script's own files at the newest checkpoints, and their record."""
        return self.root / "files"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def make(self, folder: Path) -> Path:
        """Creates `folder` (below the root) and its parents with mode 0700.

        Raises:
            OSError: it cannot be made, or a symbolic link leads out of the run directory.
        """
        if not self.holds(folder):
            raise OSError(errno.ELOOP, "is a symbolic link that leads out of the run", str(folder))
        return make_private(folder)

    def holds(self, path: Path) -> bool:
        """Whether `path` lies in the directory, also when symbolic links are followed."""
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root))


def new_run_directory(name: str) -> Path:
    """Creates `runs/NAME-TIME`, with a number behind it if taken: launches never share one.

    Raises:
        UsageError: it cannot be made.
    """
    path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        number, free = 1, path
        while not _made(free):
            number += 1
            free = path.with_name(f"{path.name}-{number}")
        return free
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: give a --run-dir that can be made") from error


def _made(path: Path) -> bool:
    """Creates the folder; False if the name is taken, even by a simultaneous launch."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def note_terminal(rundir: RunDirectory) -> None:
    """Called by each parent of a run as it begins, on every node; a refusing disk is ignored."""
    with contextlib.suppress(OSError):
        found = sorted({path for number in (1, 2) if (path := _file_of(number))})
        if found:
            name = hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
            write_private(rundir.make(rundir.terminals) / f"{name}.json", json.dumps(found))


def terminal_files(root: str) -> set[str]:
    """Returns the real paths of those of all parents that the run has had.

    Args:
        root: path of the run directory.
    """
    found: set[str] = set()
    for path in RunDirectory(Path(root)).terminals.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            found.update(map(str, json.loads(path.read_text())))
    return found


def _file_of(number: int) -> str:
    """Returns the regular file that a descriptor of this process is; empty if it is none."""
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            return os.readlink(f"/proc/self/fd/{number}")
    except OSError:  # it is closed, or /proc is hidden
        pass
    return ""
