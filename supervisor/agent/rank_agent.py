"""torch's elastic agent with the parent's loop: it starts, watches, reports, and decides nothing.

Rendezvous, the assignment of ranks, their environment and their start are torch's. Whether and from
where the ranks start again is the parent's decision, for all nodes alike.

Orders from the parent, and reports to it: JSON lines.

How the nodes of one attempt find each other: through a store of torch's that node 0 has.

Who takes part, and with which number, is the first parent's decision, so there is no voting as in
torch's dynamic rendezvous: two protocols of membership would have to agree. Each attempt has a
store of its own, so nothing of an earlier one is in it (pytorch #135712, #167288).
"""

from __future__ import annotations

import datetime
import json
import os
import select
import signal
import subprocess
import sys
import uuid
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from supervisor.agent.standby import Standby
from supervisor.own_process import HEALING, KEPT, PARENT, STREAMS
from supervisor.ranks import NodePlace


class Channel:
    """Read by the agent between its looks at the ranks; never blocks longer than it is told to."""

    def __init__(self, orders: int, reports: int) -> None:
        """Both are file descriptors; `reports` may be inherited by nobody."""
        self._orders = orders
        self._reports = os.dup(reports)
        self._unread = b""
        self.is_closed = False

    def report(self, **what: Any) -> None:
        """Sends one report; one that nobody reads any more is lost."""
        try:
            os.write(self._reports, json.dumps(what).encode() + b"\n")
        except OSError:
            self.is_closed = True

    def next_order(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Returns the next order; None if none came in time, or the channel is closed."""
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._orders], [], [], timeout_s)
            if not ready:
                return None
            data = os.read(self._orders, 65536)
            if not data:
                self.is_closed = True
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order


MEETS_WITHIN_S = 300.0
"""All nodes are ordered to start at once; the slowest has to import torch again before."""


class Meeting(RendezvousHandler):
    """torch's agent asks it where this node stands; `start` is called before each attempt.

    The ranks use the same store (TORCHELASTIC_USE_AGENT_STORE), as with torchrun, so that no port
    has to be found for one of their own, and lost to another process meanwhile.
    """

    def __init__(self) -> None:
        self._place = NodePlace()
        self._store: TCPStore | None = None
        self._run_id = uuid.uuid4().hex

    def start(self, place: NodePlace) -> int:
        """Makes the store of an attempt, or finds it; returns its port.

        Raises:
            RuntimeError: the port is taken, or node 0 is not reached.
        """
        self._store = None
        self._store = TCPStore(
            place.host,
            place.port,
            is_master=place.number == 0,
            timeout=datetime.timedelta(seconds=MEETS_WITHIN_S),
            wait_for_workers=False,
        )
        self._place = place
        self._run_id = place.run_id or self._run_id
        return int(self._store.port)

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store, place = self._store, self._place
        assert store is not None, "`start` comes first"
        where = RendezvousStoreInfo(place.host, store.port)
        return RendezvousInfo(store, place.number, place.count, where)

    def get_backend(self) -> str:
        return "c10d"

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """The parent decides when the run is over."""

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._store = None
        return True


POLL_S = 0.05
_STOP_S = 2
"""For what is left of ranks whose end the parent has seen, or ordered."""


class RankAgent(LocalElasticAgent):
    """Overrides torch's loop only."""

    def __init__(self, local_ranks: int, channel: Channel) -> None:
        self._meeting = Meeting()
        spec = WorkerSpec(
            role="default",
            local_world_size=local_ranks,
            entrypoint=sys.executable,
            args=(),
            rdzv_handler=self._meeting,
            max_restarts=0,
            monitor_interval=POLL_S,
        )
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull), exit_barrier_timeout=5)
        self._channel = channel
        self._standby: Standby | None = None
        if local_ranks > 1:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does

    def _invoke_run(self, role: str = "default") -> RunResult:
        while not self._channel.is_closed:
            order = self._channel.next_order(None)
            if order is not None and "again" in order:  # the others have ended meanwhile
                self._channel.report(ended=self._rank_at(int(order["again"])), code=-signal.SIGKILL)
            elif order is not None and "standby" not in order:
                try:
                    self._attempt(order)
                except Exception as error:  # the parent decides what comes of it
                    self._channel.report(failed=f"{type(error).__name__}: {error}")
        ended = {worker.global_rank: 0 for worker in self._worker_group.workers}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=ended)

    def _attempt(self, order: dict[str, Any]) -> None:
        """Starts the ranks of one attempt and reports the end of each."""
        group = self._worker_group
        self._channel.report(store=self._meeting.start(NodePlace(**order["node"])))
        self._rendezvous(group)
        group.spec.entrypoint, *arguments = order["command"]
        group.spec.args = tuple(arguments)
        os.environ[PARENT] = str(os.getpid())
        os.environ[STREAMS] = json.dumps(order["streams"])
        os.environ[KEPT] = json.dumps(order["kept"])
        self._healing = order.get("healing", {})
        os.environ[HEALING] = json.dumps(self._healing)
        self._start_workers(group)
        # torch has taken these signals over; those meant for the ranks come from the parent.
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(signum, _pass_over)
        processes = self._processes()
        pids = {worker.global_rank: processes[worker.local_rank].pid for worker in group.workers}
        self._channel.report(started=pids, world_size=group.workers[0].world_size)
        try:
            self._watch(processes)
        finally:
            self._end_standby()
            self._shutdown(signal.SIGKILL, _STOP_S)

    def _watch(self, processes: dict[int, subprocess.Popen[bytes]]) -> None:
        """Returns when all ranks have ended, or the parent is gone."""
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        while ranks and not self._channel.is_closed:
            for local_rank, rank in list(ranks.items()):
                code = processes[local_rank].poll()
                if code is not None:
                    del ranks[local_rank]
                    self._channel.report(ended=rank, code=code)
            order = self._channel.next_order(POLL_S) if ranks else None
            if order is not None and "standby" in order:
                self._end_standby()
                self._standby = Standby(processes[0].args, self._environment(0))
            elif order is not None and "again" in order:
                local_rank = int(order["again"])
                self._start_alone(processes, local_rank, order["healing"])
                ranks[local_rank] = self._rank_at(local_rank)
                pid = processes[local_rank].pid
                self._channel.report(again=ranks[local_rank], pid=pid)

    def _rank_at(self, local_rank: int) -> int:
        workers = self._worker_group.workers
        return next(int(w.global_rank) for w in workers if w.local_rank == local_rank)

    def _start_alone(
        self,
        processes: dict[int, subprocess.Popen[bytes]],
        local_rank: int,
        told: dict[str, Any],
    ) -> None:
        """Starts one rank again, as torch started it, while the others live.

        Args:
            processes: local rank → its process; changed.
            local_rank: of the dead one.
            told: what its new process is told beside what all are told.
        """
        environment = self._environment(local_rank)
        environment[HEALING] = json.dumps({**self._healing, **told})
        new = self._standby.become(environment) if self._standby is not None else None
        if new is None:
            new = subprocess.Popen(
                processes[local_rank].args, env=environment, start_new_session=True
            )
        else:
            self._standby = None
        processes[local_rank] = new
        self._pcontext.subprocess_handlers[local_rank].proc = new  # type: ignore[union-attr]

    def _environment(self, local_rank: int) -> dict[str, str]:
        """Returns what torch has started a rank with."""
        return {**os.environ, **self._pcontext.envs[local_rank]}  # type: ignore[union-attr]

    def _end_standby(self) -> None:
        if self._standby is not None:
            self._standby.end()
            self._standby = None

    def _processes(self) -> dict[int, subprocess.Popen[bytes]]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {local_rank: handler.proc for local_rank, handler in handlers.items()}


def count_local_ranks(wanted: str) -> int:
    """Returns how many ranks ``--nproc-per-node`` asks for on this machine.

    Raises:
        ValueError: ``gpu`` where there is none.
    """
    if wanted.isdecimal():
        return int(wanted)
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "gpu" and not devices:
        raise ValueError("--nproc-per-node gpu: this machine has none: give a number, or cpu")
    if wanted == "cpu" or not devices:
        return os.cpu_count() or 1
    return devices


def _pass_over(signum: int, frame: object) -> None:
    """Unlike an ignored signal, this is not inherited by the ranks."""
