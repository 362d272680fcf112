"""torch's elastic agent with the parent's loop: it starts, watches, reports, and decides nothing.

Rendezvous, the assignment of ranks, their environment and their start are torch's. Whether and from
where the ranks start again is the parent's decision, for all nodes alike.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from supervisor.agent.channel import Channel
from supervisor.agent.meeting import Meeting
from supervisor.own_process import KEPT, PARENT, STREAMS
from supervisor.ranks import NodePlace

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
        if local_ranks > 1:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does

    def _invoke_run(self, role: str = "default") -> RunResult:
        while not self._channel.is_closed:
            order = self._channel.next_order(None)
            if order is not None:
                try:
                    self._attempt(order)
                except Exception as error:  # the parent decides what comes of it
                    self._channel.report(failed=f"{type(error).__name__}: {error}")
        ended = {worker.global_rank: 0 for worker in self._worker_group.workers}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=ended)

    def _attempt(self, order: dict[str, Any]) -> None:
        """Starts the ranks of one attempt and reports the end of each."""
        group = self._worker_group
        self._channel.report(store=self._meeting.begin(NodePlace(**order["node"])))
        self._rendezvous(group)
        group.spec.entrypoint, *arguments = order["command"]
        group.spec.args = tuple(arguments)
        os.environ[PARENT] = str(os.getpid())
        os.environ[STREAMS] = json.dumps(order["streams"])
        os.environ[KEPT] = json.dumps(order["kept"])
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
            if ranks:
                self._channel.next_order(POLL_S)

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
