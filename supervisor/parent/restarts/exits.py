"""Why a worker process ended: ordered rules, of which the first that matches wins.

The worker's own note comes before what was done to it, and that before guesses. Exit code 0 alone
proves nothing, nor does SIGKILL prove that memory ran out.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from supervisor.codes import ExitSign, OutsideCause
from supervisor.parent.process.signals import ANNOUNCING
from supervisor.parent.restarts import failure_signs
from supervisor.parent.watching.collective_records import SilentRank, find_hanging_rank
from supervisor.parent.watching.device_watch import DeviceFindings
from supervisor.ranks import FIRST_RANK
from supervisor.records import ExitCause, WorkerExit
from supervisor.storage.run.exit_notes import ExitNote, bytes_asked_for, sign_of

OF_THE_PROCESS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that a process brings upon itself; all others come from outside."""
_SHOWN = 300
OUTSIDE = {
    OutsideCause.DISK: "a disk of the script's is full, read-only or failing",
    OutsideCause.MEMORY: "the host has no memory left",
    OutsideCause.LIMIT: "the system allows no more open files or processes",
    OutsideCause.CONNECTION: "a connection failed",
    OutsideCause.TIMEOUT: "a time limit passed",
    OutsideCause.SIGNAL: "a process of the script's was ended",
    OutsideCause.DEVICE: "NVML tells of a failing device",
    OutsideCause.UNSEEN: "no exception was seen",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnding:
    """What is known about a process that has ended.

    Attributes:
        rank: whose process it was.
        returncode: as `subprocess` gives it: negative for a signal.
        note: what the worker wrote at its end; None if it could not.
        last_step: the last step of the flight recorder that this attempt wrote.
        has_stepped: whether any attempt of this run made a step.
        hang: why the watchdog considered it hung; None if it did not.
        is_over: it stood behind its training when it was ended for that.
        background: why a script that put itself into the background cannot be supervised; or empty.
        signals_sent: signals that the parent sent to it.
        asked_by: the signal to the parent by which it may have ended, see `SignalInbox.stopped_by`.
        sent_directly: the same of signals that its own process got, from whomever.
        lost: what became of its node, or of the agent there, if it ended because that is gone.
        oom_kills: kills by the kernel's memory controller in our group during the attempt.
        memory: the last memory sample, as a sentence.
        log_tail: the end of its output.
        seen: what it has left of its collectives; None in a training of one process.
    """

    returncode: int
    rank: int = FIRST_RANK
    note: ExitNote | None = None
    last_step: int | None = None
    has_stepped: bool = False
    hang: str | None = None
    is_over: bool = False
    background: str = ""
    signals_sent: tuple[int, ...] = ()
    asked_by: int | None = None
    sent_directly: int | None = None
    oom_kills: int = 0
    lost: str = ""
    memory: str = ""
    log_tail: str = ""
    seen: SilentRank | None = None

    @property
    def signum(self) -> int | None:
        return -self.returncode if self.returncode < 0 else None

    @property
    def is_disturbed(self) -> bool:
        """Whether a signal may have ended it, a hang's included: a clean end proves nothing then,
        since the script may handle the signal by saving and leaving its loop."""
        return self.asked_by is not None or self.sent_directly is not None

    @property
    def is_cut_off(self) -> bool:
        """Whether it was ended from outside in what a script does after its end: in `atexit`, in
        which some save their results. One that we ended there, or that broke there, is none."""
        ended = self.signum is not None and self.signum not in OF_THE_PROCESS
        by_us = bool(self.hang or self.lost) or self.signum in self.signals_sent
        return ended and not by_us

    @property
    def last_words(self) -> str:
        """What it told itself; a library that aborts the process writes to its output alone."""
        if self.note is not None:
            return self.note.message or ""
        return self.log_tail if self.signum == signal.SIGABRT else ""


def judge_group(endings: Sequence[ProcessEnding]) -> WorkerExit:
    """Returns why an attempt ended, from the endings of all its ranks.

    It has completed if all have. Otherwise one rank began it: one that a signal or the kernel
    ended without a word, before one that failed by itself, before those that tell of a peer that
    has gone, before those that we ended ourselves. Among equals it is the one that failed first.
    Where ranks have only waited for others for too long, it is the one that they waited for.

    Args:
        endings: at least one; one for each rank.
    """
    exits = [(ending, classify(ending)) for ending in endings]
    failed = [found for found in exits if found[1].cause is not ExitCause.COMPLETED]
    ending, cause = min(failed or exits, key=_order_of_blame)
    if len(endings) == 1 or not failed:
        return cause
    if cause.cause is ExitCause.HANG and not ending.hang:
        return _awaited(endings, ending, cause)
    if ending.lost and ending.note is None:  # with all of its node: no rank began it
        return cause
    told = f"rank {ending.rank} ended first of {len(endings)}"
    following = tuple(each.rank for each in endings if each is not ending and _tells_of_peer(each))
    evidence = (*cause.evidence, told)
    return replace(cause, evidence=evidence, rank=ending.rank, following=following)


def _awaited(
    endings: Sequence[ProcessEnding], waited: ProcessEnding, cause: WorkerExit
) -> WorkerExit:
    ranks = [each.seen or SilentRank(rank=each.rank, last_step=each.last_step) for each in endings]
    rank, why = find_hanging_rank(ranks)
    frames = next(each.frames for each in ranks if each.rank == rank)
    stood = [f"rank {rank} was in {frame}" for frame in frames[:1]]
    told = f"rank {waited.rank} waited for too long: {why}"
    return replace(cause, evidence=(told, *stood, *cause.evidence), rank=rank)


def _order_of_blame(found: tuple[ProcessEnding, WorkerExit]) -> tuple[int, float, int]:
    """Sorts endings by how likely they are to be the cause of the others."""
    ending, worker_exit = found
    note = ending.note
    is_peer = _tells_of_peer(ending)
    if note is None or note.kind == "own_signal":
        asked = ending.signum == signal.SIGTERM or ending.signum in ending.signals_sent
        is_ours = asked and worker_exit.cause is ExitCause.KILLED
        kind = 3 if is_ours else 2 if is_peer else 0
    elif note.kind == "completed" and ending.is_cut_off:
        kind = 3  # its training was over
    else:
        kind = 2 if note.kind == "exception" and is_peer else 1
    return kind, note.time if note is not None else math.inf, ending.rank


def _tells_of_peer(ending: ProcessEnding) -> bool:
    return failure_signs.outside_fault(ending.last_words) == failure_signs.ANOTHER_RANK


def classify(ending: ProcessEnding) -> WorkerExit:
    """Returns why the worker ended, with at least one line of evidence; never fails."""
    for rule in _RULES:
        verdict = rule(ending)
        if verdict is not None:
            return verdict
    return _exit(ending, ExitCause.EXCEPTION, f"exit code {ending.returncode}, and no reason given")


def _background(ending: ProcessEnding) -> WorkerExit | None:
    if not ending.background or ending.is_disturbed:
        return None
    return _exit(ending, ExitCause.EXCEPTION, ending.background, retry=False)


def _completed(ending: ProcessEnding) -> WorkerExit | None:
    if ending.note is None or ending.note.kind != "completed" or ending.is_disturbed:
        return None
    if ending.note.sick:
        return _exit(ending, ExitCause.NONFINITE, ending.note.sick, retry=False)
    if ending.is_cut_off:
        return None
    if ending.returncode > 0:
        line = f"what the script does at its exit ended with {ending.returncode}"
        return _exit(ending, ExitCause.USER_ERROR, line, retry=False, sign=ExitSign.OWN_EXIT)
    return _exit(ending, ExitCause.COMPLETED, "completion marker", retry=False)


def _executed(ending: ProcessEnding) -> WorkerExit | None:
    """The script has become another program, which is not ours to start again."""
    note = ending.note
    if note is None or note.kind != "executed" or ending.is_disturbed:
        return None
    if note.sick:
        return _exit(ending, ExitCause.NONFINITE, note.sick, retry=False)
    line = f"{note.message}, which the script executed, ended with {ending.returncode}"
    if ending.returncode == 0:
        return _exit(ending, ExitCause.COMPLETED, line, retry=False)
    return _exit(ending, ExitCause.USER_ERROR, line, retry=False, sign=ExitSign.OWN_EXIT)


def _hang(ending: ProcessEnding) -> WorkerExit | None:
    if not ending.hang:
        return None
    return _exit(ending, ExitCause.HANG, ending.hang, retry=not ending.is_over)


def _interrupted(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if not ending.is_disturbed and (note is None or note.kind != "interrupted"):
        return None
    stopped_by = ending.asked_by or ending.sent_directly
    # Schedulers announce the end of an allocation with these; people and shells do not send them.
    cause = ExitCause.PREEMPTED if stopped_by in ANNOUNCING else ExitCause.INTERRUPTED
    if ending.asked_by is not None:
        typed = ending.asked_by == signal.SIGINT
        line = (
            "Ctrl-C (SIGINT)"
            if typed
            else f"the supervisor was sent {signal_name(ending.asked_by)}"
        )
    elif note is not None and note.kind == "interrupted":
        line = f"the worker was interrupted: {_first_line(note.message)}"
    else:
        line = f"the training's process was sent {signal_name(stopped_by or 0)}"
    how = _how_the_script_ended(note)
    found = _exit(ending, cause, f"{line}; {how}" if how else line, retry=False)
    return replace(found, stopped_by=stopped_by)


def _how_the_script_ended(note: ExitNote | None) -> str:
    """Of a script that was sent a signal, and did something about it itself."""
    if note is None or note.kind not in ("completed", "system_exit", "exception"):
        return ""
    after = f" {note.stopped_s:.1f} s later" if note.stopped_by is not None else ""
    if note.kind == "exception":
        return f"the script raised{after}: {_raised(note)}"
    code = f" with sys.exit({note.code})" if note.code else ""
    return f"the script ended itself{after}{code}"


def _own_exit(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or note.kind != "system_exit":
        return None
    code = note.code if note.code is not None else ending.returncode
    if code == 0:
        return _exit(ending, ExitCause.COMPLETED, "the script ended with sys.exit(0)", retry=False)
    text = f"the script ended with sys.exit({code})"
    return _exit(ending, ExitCause.USER_ERROR, text, retry=False, sign=ExitSign.OWN_EXIT)


def _short(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or note.kind not in ("short", "loading"):
        return None
    return _exit(ending, ExitCause.EXCEPTION, _first_line(note.message))


def _ladder(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or note.kind not in ("restart", "stop"):
        return None
    wish = "a restart" if note.kind == "restart" else "an emergency stop"
    line = f"the policy asked for {wish}: {_first_line(note.message)}"
    again = note.kind == "restart"
    sign = ExitSign.TREATMENT if again else None
    return _exit(ending, ExitCause.NONFINITE, line, *note.evidence, retry=again, sign=sign)


def _mistake(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or note.kind != "mistake":
        return None
    line, sign = _first_line(note.message), ExitSign.MISTAKE
    return _exit(ending, ExitCause.USER_ERROR, line, retry=False, sign=sign)


def _retry(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or note.kind != "retry":
        return None
    line = f"the policy asked for an exact retry: {_first_line(note.message)}"
    return _exit(ending, ExitCause.NONFINITE, line, sign=ExitSign.EXACT_RETRY)


def _asks_in_vain(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or not failure_signs.asks_in_vain(
        note.exception or "", note.message or "", note.traceback or ""
    ):
        return None
    line = (
        "EOFError: the script asks for input, and nobody answers: start it at a terminal, or give "
        "it the answers: < FILE"
    )
    return _exit(ending, ExitCause.EXCEPTION, line, retry=False)


def _users_mistake(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or note.kind not in ("exception", "user_error"):
        return None
    name = note.exception or ""
    if note.kind != "user_error" and not failure_signs.is_users_mistake(
        name, note.phase, has_stepped=ending.has_stepped
    ):
        return None
    return _exit(ending, ExitCause.USER_ERROR, _raised(note), retry=False)


def _memory(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is not None and note.kind == "exception":
        found = failure_signs.memory_shortage(note.exception or "", note.message or "")
        if found is not None:
            return _exit(ending, found[0], _raised(note), found[1], ending.memory)
        # A loader worker that the kernel killed surfaces as an exception in its parent.
        if ending.oom_kills and failure_signs.is_killed_child(note.message or ""):
            return _exit(ending, ExitCause.HOST_OUT_OF_MEMORY, _raised(note), _oom_line(ending))
        return None
    is_silent = note is None or note.kind == "completed"
    if is_silent and ending.signum == signal.SIGKILL and ending.oom_kills:
        return _exit(ending, ExitCause.HOST_OUT_OF_MEMORY, _oom_line(ending), ending.memory)
    if note is None and ending.signum == signal.SIGABRT:
        found = failure_signs.memory_shortage("", ending.log_tail)
        if found is not None:
            return _exit(ending, found[0], "aborted", found[1], _tail_line(ending.log_tail))
    return None


def _waited(ending: ProcessEnding) -> WorkerExit | None:
    """A time limit of the script's own groups was shorter than the watchdog's."""
    note = ending.note
    if not failure_signs.is_vain_wait(ending.last_words):
        return None
    if note is None:
        return _exit(
            ending, ExitCause.HANG, _peer_line(ending.log_tail), signal_name(signal.SIGABRT)
        )
    return _exit(ending, ExitCause.HANG, _raised(note)) if note.kind == "exception" else None


def _exception(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is None or note.kind != "exception":
        return None
    text = note.message or ""
    if not note.outside and failure_signs.is_nonfinite(note.exception or "", text):
        return _exit(ending, ExitCause.NONFINITE, _raised(note))
    fault = failure_signs.outside_fault(text)
    hint = f"such a message comes from {fault}" if fault else ""
    if note.outside:
        hint = f"{OUTSIDE[OutsideCause(note.outside)]}: neither script nor data are to blame"
    hint = failure_signs.collective_mismatch(text) or hint
    loader = "raised in a worker of a data loader" if failure_signs.is_loader_failure(text) else ""
    return _exit(ending, ExitCause.EXCEPTION, _raised(note), *note.evidence, loader, hint)


def _own_signal(ending: ProcessEnding) -> WorkerExit | None:
    if ending.note is None or ending.note.kind != "own_signal" or ending.signum is None:
        return None
    line = f"{signal_name(ending.signum)}, which the process sent to itself"
    return _exit(ending, ExitCause.KILLED, line, sign=ExitSign.OWN_SIGNAL)


def _lost(ending: ProcessEnding) -> WorkerExit | None:
    if not ending.lost or ending.note is not None:
        return None
    return _exit(ending, ExitCause.KILLED, ending.lost)


def _killed(ending: ProcessEnding) -> WorkerExit | None:
    signum = ending.signum
    if signum is None:
        return None
    hint = ""
    if signum == signal.SIGKILL:
        hint = "no proof that memory ran out: the kernel's memory controller counted no kill"
    elif signum == signal.SIGBUS:
        hint = "often a full /dev/shm: fewer loader workers, or more shared memory"
    elif signum == signal.SIGABRT:
        mismatch = failure_signs.collective_mismatch(ending.log_tail)
        if mismatch:
            return _exit(ending, ExitCause.KILLED, mismatch, signal_name(signum))
        told = _peer_line(ending.log_tail)
        if told:
            hint = f"such a message comes from {failure_signs.ANOTHER_RANK}"
            return _exit(ending, ExitCause.KILLED, told, signal_name(signum), hint)
    by_us = "by the supervisor" if signum in ending.signals_sent else "from outside"
    if signum in OF_THE_PROCESS:
        by_us = "in the process itself"
    line = f"{signal_name(signum)}, {by_us}"
    if ending.note is not None and ending.note.kind == "completed":
        line += ", after the script's end and before its process's"
    return _exit(ending, ExitCause.KILLED, line, hint, ending.memory)


def _silent_zero(ending: ProcessEnding) -> WorkerExit | None:
    if ending.returncode != 0:
        return None
    line = "exit code 0 without completion: the process ended itself before the script's end"
    return _exit(ending, ExitCause.EXCEPTION, line)


def _unexplained(ending: ProcessEnding) -> WorkerExit | None:
    lines = [f"exit code {ending.returncode}, and no reason given", _tail_line(ending.log_tail)]
    return _exit(ending, ExitCause.EXCEPTION, *lines)


_RULES: tuple[Callable[[ProcessEnding], WorkerExit | None], ...] = (
    _background,
    _completed,
    _executed,
    _hang,
    _interrupted,
    _own_exit,
    _short,
    _ladder,
    _mistake,
    _retry,
    _asks_in_vain,
    _users_mistake,
    _memory,
    _waited,
    _exception,
    _own_signal,
    _lost,
    _killed,
    _silent_zero,
    _unexplained,
)


def with_device_findings(worker_exit: WorkerExit, found: DeviceFindings) -> WorkerExit:
    """Adds what NVML has seen meanwhile. Only a death, a hang or an error of the device, with
    a fault of the hardware beside it, is laid to the hardware."""
    seen = replace(worker_exit, evidence=(*worker_exit.evidence, *found.sentences))
    is_of_device = worker_exit.cause in (ExitCause.KILLED, ExitCause.HANG) or any(
        map(failure_signs.is_of_device, worker_exit.evidence)
    )
    if not found.faults or not is_of_device:
        return seen
    sign = worker_exit.sign or ExitSign.FAILING_DEVICE
    return replace(seen, sign=sign, outside=OutsideCause.DEVICE, device=found.faults[0].device)


def signal_name(signum: int) -> str:
    """Returns ``SIGTERM`` for 15; a number that has no name as ``signal 99``."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def failure_key(worker_exit: WorkerExit) -> str:
    """Returns a key that is equal for two occurrences of the same failure, whatever their step.

    Numbers in messages are ignored: addresses, sizes and process ids differ between attempts.
    """
    first = worker_exit.evidence[0] if worker_exit.evidence else ""
    return f"{worker_exit.cause.value}: {re.sub(r'0x[0-9a-f]+|[0-9.]+', '#', first)}"


def _exit(
    ending: ProcessEnding,
    cause: ExitCause,
    *evidence: str,
    retry: bool = True,
    sign: ExitSign | None = None,
) -> WorkerExit:
    last_step = ending.last_step
    if last_step is None and ending.note is not None:
        last_step = ending.note.last_step
    outside = OutsideCause.UNSEEN if ending.note is None else ending.note.outside
    return WorkerExit(
        cause=cause,
        returncode=ending.returncode,
        signum=ending.signum,
        last_step=last_step,
        evidence=tuple(line for line in evidence if line),
        retry=retry,
        outside=OutsideCause(outside) if outside else None,
        sign=sign or sign_of((*evidence, ending.note.traceback if ending.note else "")),
        asked_bytes=bytes_asked_for(evidence),
        asks_batch_size=ending.note is not None and ending.note.asks_batch_size,
        offers_checkpointing=ending.note is not None and ending.note.offers_checkpointing,
    )


def _raised(note: ExitNote) -> str:
    return f"{note.exception or 'error'}: {_first_line(note.message)}"


def _oom_line(ending: ProcessEnding) -> str:
    return f"the kernel's memory controller killed {ending.oom_kills} process(es) of this group"


def _first_line(text: str | None) -> str:
    return ((text or "").strip().splitlines() or [""])[0][:_SHOWN]


def _peer_line(log_tail: str) -> str:
    """The first line that tells of another rank; empty without one."""
    lines = (line.strip() for line in log_tail.splitlines())
    peers = failure_signs.ANOTHER_RANK
    return next((line for line in lines if failure_signs.outside_fault(line) == peers), "")[:_SHOWN]


def _tail_line(log_tail: str) -> str:
    lines = [line for line in log_tail.splitlines() if line.strip()]
    return f"last output: {lines[-1].strip()[:_SHOWN]}" if lines else ""
