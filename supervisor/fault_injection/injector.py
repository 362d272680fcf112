"""Real faults at a chosen step, for drills and tests: the config key ``faults``.

    faults: [{kind: nan_data, step: 120}, {kind: sigkill, step: 200, moment: forward, count: 1}]

``kind``    one of `KINDS`
``step``    number of the update that the fault belongs to, from 0
``moment``  for faults of the process: ``forward``, ``evaluation`` (a forward without gradients),
            ``backward``, ``update``, ``after`` (default)
``count``   how often it strikes in the whole run, attempts counted together (default 1)
``every``   at every step from `step` on (default false)
``rank``    which of several ranks it strikes (default 0); -1: each
``transient``  a fault of the machine: `supervisor explain` does not repeat it (default false)
``factor``  for ``loss_spike`` (1e4), ``lr_spike`` (300), ``second_moment`` (1e-9); steps for
            ``disk_full`` (20); seconds for ``slow`` (2)

``disk_full``           files cannot grow for a while
``damaged_checkpoint``  a bit of the newest checkpoint flips, then SIGKILL
``slow``                the data come late, once

A fault that struck is noted in ``RUN/faults.json`` before it strikes, so that a restarted run does
not meet it again.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from supervisor.errors import PassesGuards
from supervisor.fault_injection.fault import PROCESS_KINDS, Fault
from supervisor.ranks import FIRST_RANK
from supervisor.storage.files.private_files import write_json


class FullDisk:
    """Lets no regular file of this process grow, by RLIMIT_FSIZE: writes fail with EFBIG.

    As on a disk without room nothing can be saved, neither by us nor by the script; pipes and what
    is mapped already still work. Needs no rights, and leaves other processes alone.
    """

    def __init__(self) -> None:
        self._steps_left = 0
        self._before: tuple[int, int] | None = None

    def start(self, steps: int) -> None:
        """From now on, for so many steps."""
        self._steps_left = steps
        if self._before is None:
            self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._before[1]))

    def step_done(self) -> None:
        """Counts steps, and makes room again after the last."""
        if self._before is None:
            return
        self._steps_left -= 1
        if self._steps_left <= 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
            self._before = None


def damage_newest_checkpoint(checkpoints: Path) -> None:
    """Flips one bit in the middle of the largest file of the newest checkpoint, if there is one."""
    folders = sorted(path for path in checkpoints.glob("step_*") if path.is_dir())
    if not folders:
        return
    victim = max(
        (path for path in folders[-1].rglob("*") if path.is_file() and path.suffix != ".json"),
        key=lambda path: path.stat().st_size,
        default=None,
    )
    if victim is None:
        return
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)


def kill_from_outside(pid: int, signum: int) -> None:
    """As another process would: a worker notes what it sends itself (`watch_own_signals`)."""
    getattr(os.kill, "__wrapped__", os.kill)(pid, signum)


def ask_parent_to_end() -> None:
    """Sends SIGTERM to the parent, and waits for it to be passed on: a quick script would be over
    before the parent looks."""
    # The real ones: what is to be called is the worker's, which a script does not see.
    get = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
    put = getattr(signal.signal, "__wrapped__", signal.signal)
    before = get(signal.SIGTERM)
    if before is None or threading.current_thread() is not threading.main_thread():
        os.kill(_supervisor_pid(), signal.SIGTERM)
        return
    arrived: list[int] = []

    def note(signum: int, frame: Any) -> None:
        arrived.append(signum)
        if callable(before):
            before(signum, frame)

    put(signal.SIGTERM, note)
    try:
        os.kill(_supervisor_pid(), signal.SIGTERM)
        deadline_s = time.monotonic() + 30.0
        while not arrived and time.monotonic() < deadline_s:
            time.sleep(0.01)
    finally:
        put(signal.SIGTERM, before)


def _supervisor_pid() -> int:
    """The subreaper in between ignores signals, so they go to the supervisor above it. Several
    ranks have their agent between themselves and the subreaper."""
    parent = psutil.Process(os.getppid())
    for above in (parent, *parent.parents()[:1]):
        if any(word.endswith("subreaper.py") for word in above.cmdline()):
            return above.ppid()
    return parent.pid


EACH_RANK = -1


class InjectedFault(PassesGuards, RuntimeError):
    """The exception of the fault ``exception``; it reaches the user's loop on purpose."""


class InjectedOutOfMemory(InjectedFault, torch.OutOfMemoryError):
    """As torch raises it when a device has no memory left."""


class FaultInjector:
    """Strikes at the moments that the monitor hands over; does nothing without faults.

    Args:
        entries: the config's list.
        struck_file: where strikes of this rank are counted over all attempts.
        rank: of this process; it meets its own faults and those of each rank.

    Attributes:
        is_armed: whether there is any fault at all; nothing else needs to be asked if not.

    Raises:
        ConfigError: an entry is wrong.
    """

    def __init__(
        self, entries: Sequence[Mapping[str, Any]], struck_file: Path, *, rank: int = FIRST_RANK
    ) -> None:
        faults = [Fault.from_config(entry) for entry in entries]
        self._faults = [fault for fault in faults if fault.rank in (rank, EACH_RANK)]
        self._file = struck_file
        self._struck: dict[str, int] = {}
        if self._faults and struck_file.exists():
            self._struck = json.loads(struck_file.read_text())
        self._lr: list[tuple[dict[str, Any], Any]] = []
        self._full_disk = FullDisk()
        self.is_armed = bool(self._faults)

    def on_forward(
        self,
        step: int,
        module: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: Callable[[], Any],
    ) -> Callable[[], Any]:
        """Before the first forward of a step runs; may poison its input."""
        self._process_faults(step, "forward" if torch.is_grad_enabled() else "evaluation")
        if any(_is_float(v) for v in (*args, *kwargs.values())) and self._strikes(step, "nan_data"):
            poisoned = tuple(_poison(v) for v in args)
            named = {key: _poison(value) for key, value in kwargs.items()}
            return lambda: module(*poisoned, **named)
        return call

    def on_output(self, step: int, output: Any) -> Any:
        """After a forward: inputs of integers cannot be NaN, so what comes of them is."""
        if self._strikes(step, "nan_data"):
            return pytree.tree_map(_poison, output)
        return output

    def on_loss(self, step: int, roots: Any) -> Any:
        """Before backward; returns the loss to use."""
        self._process_faults(step, "backward")
        if not isinstance(roots, torch.Tensor):
            return roots
        if self._strikes(step, "nan_loss"):
            return roots * math.nan
        fault = self._strikes(step, "loss_spike")
        if fault is not None:
            return roots * fault.factor_or(1e4)
        return roots

    def on_gradients(self, step: int, parameters: Sequence[torch.Tensor]) -> None:
        """When the gradients are complete, before the script's clipping."""
        self._process_faults(step, "update")
        given = [p.grad for p in parameters if p.grad is not None]
        if given and self._strikes(step, "nan_gradient"):
            given[0].view(-1)[0] = math.nan
        fault = self._strikes(step, "gradient_spike") if given else None
        if fault is not None:
            for gradient in given:
                gradient.mul_(fault.factor_or(1e4))

    def before_step(self, step: int, optimizer: Optimizer) -> None:
        """Just before the update itself, unseen by the judgement: a schedule's bug."""
        fault = self._strikes(step, "lr_spike")
        if fault is not None:
            for group in (g for g in optimizer.param_groups if g.get("lr") is not None):
                self._lr.append((group, group["lr"]))
                group["lr"] = group["lr"] * fault.factor_or(300.0)

    def on_updated(self, step: int, optimizer: Optimizer) -> None:
        """Just after the update: corrupts what lies in memory."""
        for group, lr in self._lr:
            group["lr"] = lr
        self._lr.clear()
        if self._strikes(step, "weight"):
            parameter = max(
                (p for g in optimizer.param_groups for p in g["params"]), key=torch.Tensor.numel
            )
            parameter.data.view(-1)[parameter.numel() // 2] = 1e6
        fault = self._strikes(step, "second_moment")
        if fault is not None:
            for state in optimizer.state.values():
                if "exp_avg_sq" in state:
                    # Memory that breaks is not counted as a write.
                    with _unsafe_preserve_version_counter(state["exp_avg_sq"]):
                        state["exp_avg_sq"].mul_(fault.factor_or(1e-9))

    def on_step_done(self, steps_done: int) -> None:
        self._full_disk.step_done()
        self._process_faults(steps_done - 1, "after")

    # --- striking ----------------------------------------------------------------------------

    def _strikes(self, step: int, kind: str, moment: str | None = None) -> Fault | None:
        for index, fault in enumerate(self._faults):
            if fault.kind != kind or (moment is not None and fault.moment != moment):
                continue
            if step != fault.step and not (fault.every and step > fault.step):
                continue
            key = f"{index}:{fault.kind}:{fault.step}"
            if self._struck.get(key, 0) >= fault.count:
                continue
            self._struck[key] = self._struck.get(key, 0) + 1
            write_json(self._file, self._struck, durable=True)
            return fault
        return None

    def _process_faults(self, step: int, moment: str) -> None:
        for kind in PROCESS_KINDS:
            fault = self._strikes(step, kind, moment)
            if fault is None:
                continue
            if kind == "disk_full":
                self._full_disk.start(int(fault.factor_or(20)))
            elif kind == "slow":
                time.sleep(fault.factor_or(2.0))
            elif kind == "damaged_checkpoint":
                damage_newest_checkpoint(self._file.parent / "checkpoints")
                _strike_process("sigkill", step)
            else:
                _strike_process(kind, step)


def _strike_process(kind: str, step: int) -> None:
    if kind == "sigkill":
        kill_from_outside(os.getpid(), signal.SIGKILL)
    elif kind == "sigsegv":
        kill_from_outside(os.getpid(), signal.SIGSEGV)
    elif kind == "sigterm_parent":
        ask_parent_to_end()
    elif kind == "hang":
        while True:
            time.sleep(60.0)
    elif kind == "exit":
        ctypes.CDLL(None)._exit(0)  # as a library in C would: nothing of Python learns of it
    elif kind == "out_of_memory":
        raise InjectedOutOfMemory(f"CUDA out of memory (injected at step {step})")
    else:
        raise InjectedFault(f"injected at step {step}")


def _is_float(value: Any) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return isinstance(value, torch.Tensor) and value.is_floating_point()


def _poison(value: Any) -> Any:
    return value * math.nan if _is_float(value) else value
