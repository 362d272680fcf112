"""What all attempts of a run share, and the parts of the watching that fail alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.parent.metrics.metrics import Metrics
from supervisor.parent.nodes.members import Members
from supervisor.parent.notices.notices import Notices
from supervisor.parent.process.agent_process import AgentProcess
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.process import DEFAULT_COMMAND
from supervisor.parent.process.side_processes import LivePictures, StepLogProcess
from supervisor.parent.process.signals import SignalInbox
from supervisor.parent.run_log import RunLog
from supervisor.parent.standard_input import StandardInput
from supervisor.parent.watching.device_watch import DeviceWatch
from supervisor.parent.watching.preemption import PreemptionWatch
from supervisor.parent.watching.replica import Replica
from supervisor.parent.watching.watchdog import KnownStarts
from supervisor.storage.run.handover import Handover
from supervisor.storage.run.lease import Lease
from supervisor.storage.run.rundir import RunDirectory

POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """What all attempts of a run share."""

    spec: LaunchSpec
    rundir: RunDirectory
    run_log: RunLog
    inbox: SignalInbox
    replica: Replica
    pictures: LivePictures
    notices: Notices
    metrics: Metrics
    preemption: PreemptionWatch
    lease: Lease
    devices: DeviceWatch
    step_log: StepLogProcess | None = None
    agent: AgentProcess | None = None
    members: Members | None = None
    stdin: StandardInput | None = None
    handover: Handover = field(default_factory=lambda: Handover(0))
    starts: KnownStarts = field(default_factory=KnownStarts)
    worker_command: Sequence[str] = DEFAULT_COMMAND
    poll_s: float = POLL_S

    @property
    def local_ranks(self) -> int:
        """How many of the ranks, from the first on, are this node's."""
        return 1 if self.agent is None else self.agent.local_ranks


class Guards:
    """Runs parts of the watching: if one fails, that is written to the journal once, and the others
    go on."""

    def __init__(self, run_log: RunLog) -> None:
        self._run_log = run_log
        self._reported: set[str] = set()

    def __call__(self, what: str, work: Callable[[], Any]) -> Any:
        """Returns what `work` does; None if it fails."""
        try:
            return work()
        except Exception as error:
            if what not in self._reported:
                self._reported.add(what)
                text = f"watching the {what} failed: {type(error).__name__}: {error}"
                self._run_log.warn(text)
            return None
