"""One worker process: starts in its own session, ends with all its descendants."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from supervisor.own_process import command, worker_environment
from supervisor.parent.process.family import Family
from supervisor.parent.process.guarded_process import GuardedProcess
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.signals import to_send
from supervisor.parent.terminal.output import OutputPump
from supervisor.ranks import LEAD_RANK

KILL_S = 10.0
"""For what SIGKILL ends; what it does not end is left behind."""
DEFAULT_COMMAND = command("supervisor.worker.__main__")


class Processes(Protocol):
    """The workers of one attempt: one, or the ranks that the agent has started."""

    family: Family

    @property
    def signals_sent(self) -> Mapping[int, list[int]]:
        """Rank → the signals that it got from us."""
        ...

    @property
    def lost(self) -> Mapping[int, str]:
        """Rank → what became of its node, for those that ended because that is gone."""
        ...

    @property
    def codes(self) -> Mapping[int, int]: ...

    def wait(self, timeout_s: float) -> bool: ...

    def send(self, signum: int, *, but: Collection[int] = ()) -> None:
        """Sends a signal to each rank that lives, to none of `but`, and to nothing that they have
        started. A rank that would only be killed by it gets another one, see `to_send`."""
        ...

    def resize(self) -> None: ...

    def end(self, *, keep_others: bool = False) -> tuple[str, ...]: ...


class WorkerProcess:
    """One rank of one attempt.

    In its own session signals such as the terminal's Ctrl-C reach it only through us. Its guardian
    (`guardian.py`) ends it and all its descendants when we are gone.
    """

    lost: Mapping[int, str] = {}

    def __init__(
        self,
        spec: LaunchSpec,
        attempt: int,
        rank: int,
        output: OutputPump,
        *,
        worker: Sequence[str] = DEFAULT_COMMAND,
        handover: Sequence[str] = (),
        given: Sequence[str] = (),
    ) -> None:
        """Starts it.

        Raises:
            OSError: the interpreter cannot be started.
        """
        self._output = output
        self._process = GuardedProcess(
            worker_command(spec, attempt, rank, worker, handover, given),
            stdout=output.stdout,
            stderr=output.stderr,
            env=worker_environment(),
        )
        self.signals_sent: dict[int, list[int]] = {LEAD_RANK: []}
        self.family = Family(self.pid, self._process.guardian_pid)
        output.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it lives; negative after a signal."""
        self._process.wait(0.0)
        return self._process.returncode

    @property
    def ranks(self) -> tuple[int, ...]:
        return (LEAD_RANK,)

    @property
    def codes(self) -> Mapping[int, int]:
        """Rank → how it ended, if it has; negative after a signal."""
        code = self.returncode
        return {} if code is None else {LEAD_RANK: code}

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it has ended, after at most `timeout_s`."""
        return self._process.wait(timeout_s)

    def send(self, signum: int, *, but: Collection[int] = ()) -> None:
        sent = to_send(self.pid, signum)
        if sent is not None and not but and self._process.send(sent):
            self.signals_sent[LEAD_RANK].append(sent)

    def resize(self) -> None:
        """Tells the worker that the user's terminal was resized."""
        self._output.copy_window_size()
        self._process.send(signal.SIGWINCH)

    def end(self, *, keep_others: bool = False) -> tuple[str, ...]:
        """Kills it if it lives and ends its descendants, unless `keep_others`; returns which."""
        if not self._process.wait(0.0):
            self.family.look()
            self.send(signal.SIGKILL)
            self._process.wait(KILL_S)
        left = () if keep_others else self.family.end()
        self._process.dismiss(keep=keep_others)
        self._output.finish()
        return left


def worker_command(
    spec: LaunchSpec,
    attempt: int,
    rank: int,
    worker: Sequence[str],
    handover: Sequence[str] = (),
    given: Sequence[str] = (),
) -> list[str]:
    """Returns the whole command line of a worker; `handover`: the paths of a `Handover`; `given`:
    those of a `StandardInput`."""
    line = [
        *worker,
        "--run-dir",
        str(spec.run_dir.absolute()),
        "--attempt",
        str(attempt),
        "--rank",
        str(rank),
    ]
    if handover:
        line += ["--handover", ",".join(handover)]
    if given:
        line += ["--input", ",".join(given)]
    line += ["--kind", spec.kind, "--target", spec.target]
    if spec.function is not None:
        line += ["--function", spec.function]
    return [*line, "--", *spec.worker_arguments(attempt)]
