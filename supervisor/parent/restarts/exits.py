"""Why a worker process ended: ordered rules, of which the first that matches wins.

The worker's own note comes before what was done to it, and that before guesses. Exit code 0 alone
proves nothing, nor does SIGKILL prove that memory ran out.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

from supervisor.codes import ExitSign, OutsideCause
from supervisor.parent.process.signals import ANNOUNCING, signal_name
from supervisor.parent.restarts import failure_signs
from supervisor.parent.watching.collective_records import SilentRank
from supervisor.parent.watching.device_watch import DeviceFindings
from supervisor.ranks import FIRST_RANK
from supervisor.records import ExitCause, WorkerExit
from supervisor.storage.run.exit_notes import ExitNote, bytes_asked_for, sign_of

OF_THE_PROCESS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that a process brings upon itself; all others come from outside."""
_SHOWN = 300


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
    def told(self) -> ExitNote:
        """What it wrote at its end; of no kind if it could not."""
        return self.note or ExitNote(kind="")

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
            return self.note.message
        return self.log_tail if self.signum == signal.SIGABRT else ""


def classify(ending: ProcessEnding) -> WorkerExit:
    """Returns why the worker ended, with at least one line of evidence; never fails."""
    for rule in _RULES:
        verdict = rule(ending)
        if verdict is not None:
            return verdict
    lines = [f"exit code {ending.returncode}, and no reason given", _tail_line(ending.log_tail)]
    return _exit(ending, ExitCause.EXCEPTION, *lines)


def _background(ending: ProcessEnding) -> WorkerExit | None:
    if not ending.background or ending.is_disturbed:
        return None
    return _exit(ending, ExitCause.EXCEPTION, ending.background, retry=False)


def _completed(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.told
    if note.kind != "completed" or ending.is_disturbed:
        return None
    if note.sick:
        return _exit(ending, ExitCause.NONFINITE, note.sick, retry=False)
    if ending.is_cut_off:
        return None
    if ending.returncode > 0:
        line = f"what the script does at its exit ended with {ending.returncode}"
        return _exit(ending, ExitCause.USER_ERROR, line, retry=False, sign=ExitSign.OWN_EXIT)
    return _exit(ending, ExitCause.COMPLETED, "completion marker", retry=False)


def _executed(ending: ProcessEnding) -> WorkerExit | None:
    """The script has become another program, which is not ours to start again."""
    note = ending.told
    if note.kind != "executed" or ending.is_disturbed:
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
    note = ending.told
    if not ending.is_disturbed and note.kind != "interrupted":
        return None
    stopped_by = ending.asked_by or ending.sent_directly
    # Schedulers announce the end of an allocation with these; people and shells do not send them.
    cause = ExitCause.PREEMPTED if stopped_by in ANNOUNCING else ExitCause.INTERRUPTED
    if ending.asked_by is not None:
        line = f"the supervisor was sent {signal_name(ending.asked_by)}"
        if ending.asked_by == signal.SIGINT:
            line = "Ctrl-C (SIGINT)"
    elif note.kind == "interrupted":
        line = f"the worker was interrupted: {_first_line(note.message)}"
    else:
        line = f"the training's process was sent {signal_name(stopped_by or 0)}"
    how = _how_the_script_ended(note)
    found = _exit(ending, cause, f"{line}; {how}" if how else line, retry=False)
    return replace(found, stopped_by=stopped_by)


def _how_the_script_ended(note: ExitNote) -> str:
    """Of a script that was sent a signal, and did something about it itself."""
    if note.kind not in ("completed", "system_exit", "exception"):
        return ""
    after = f" {note.stopped_s:.1f} s later" if note.stopped_by is not None else ""
    if note.kind == "exception":
        return f"the script raised{after}: {_raised(note)}"
    code = f" with sys.exit({note.code})" if note.code else ""
    return f"the script ended itself{after}{code}"


def _own_word(ending: ProcessEnding) -> WorkerExit | None:
    """What ended it of its own accord, the script's or ours, tells why."""
    note = ending.told
    line = _first_line(note.message)
    match note.kind:
        case "system_exit":
            code = note.code if note.code is not None else ending.returncode
            text = f"the script ended with sys.exit({code})"
            if code == 0:
                return _exit(ending, ExitCause.COMPLETED, text, retry=False)
            return _exit(ending, ExitCause.USER_ERROR, text, retry=False, sign=ExitSign.OWN_EXIT)
        case "short" | "loading":
            return _exit(ending, ExitCause.EXCEPTION, line)
        case "restart":
            text = f"the policy asked for a restart: {line}"
            sign = ExitSign.TREATMENT
            return _exit(ending, ExitCause.NONFINITE, text, *note.evidence, sign=sign)
        case "stop":
            text = f"the policy asked for an emergency stop: {line}"
            return _exit(ending, ExitCause.NONFINITE, text, *note.evidence, retry=False)
        case "mistake":
            return _exit(ending, ExitCause.USER_ERROR, line, retry=False, sign=ExitSign.MISTAKE)
        case "retry":
            text = f"the policy asked for an exact retry: {line}"
            return _exit(ending, ExitCause.NONFINITE, text, sign=ExitSign.EXACT_RETRY)
    return None


def _asks_in_vain(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.told
    if not failure_signs.asks_in_vain(note.exception, note.message, note.traceback):
        return None
    line = (
        "EOFError: the script asks for input, and nobody answers: start it at a terminal, or give "
        "it the answers: < FILE"
    )
    return _exit(ending, ExitCause.EXCEPTION, line, retry=False)


def _users_mistake(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.told
    if note.kind == "user_error" or (
        note.kind == "exception"
        and failure_signs.is_users_mistake(
            note.exception, note.phase, has_stepped=ending.has_stepped
        )
    ):
        return _exit(ending, ExitCause.USER_ERROR, _raised(note), retry=False)
    return None


def _memory(ending: ProcessEnding) -> WorkerExit | None:
    note = ending.note
    if note is not None and note.kind == "exception":
        found = failure_signs.memory_shortage(note.exception, note.message)
        if found is not None:
            return _exit(ending, found[0], _raised(note), found[1], ending.memory)
        # A loader worker that the kernel killed surfaces as an exception in its parent.
        if ending.oom_kills and failure_signs.is_killed_child(note.message):
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
    note = ending.told
    if note.kind != "exception":
        return None
    text = note.message
    if not note.outside and failure_signs.is_nonfinite(note.exception, text):
        return _exit(ending, ExitCause.NONFINITE, _raised(note))
    fault = failure_signs.outside_fault(text)
    hint = f"such a message comes from {fault}" if fault else ""
    if note.outside:
        why = failure_signs.OUTSIDE[OutsideCause(note.outside)]
        hint = f"{why}: neither script nor data are to blame"
    hint = failure_signs.collective_mismatch(text) or hint
    loader = "raised in a worker of a data loader" if failure_signs.is_loader_failure(text) else ""
    return _exit(ending, ExitCause.EXCEPTION, _raised(note), *note.evidence, loader, hint)


def _own_signal(ending: ProcessEnding) -> WorkerExit | None:
    if ending.told.kind != "own_signal" or ending.signum is None:
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
    if ending.told.kind == "completed":
        line += ", after the script's end and before its process's"
    return _exit(ending, ExitCause.KILLED, line, hint, ending.memory)


def _silent_zero(ending: ProcessEnding) -> WorkerExit | None:
    if ending.returncode != 0:
        return None
    line = "exit code 0 without completion: the process ended itself before the script's end"
    return _exit(ending, ExitCause.EXCEPTION, line)


_RULES: tuple[Callable[[ProcessEnding], WorkerExit | None], ...] = (
    _background,
    _completed,
    _executed,
    _hang,
    _interrupted,
    _own_word,
    _asks_in_vain,
    _users_mistake,
    _memory,
    _waited,
    _exception,
    _own_signal,
    _lost,
    _killed,
    _silent_zero,
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
    note = ending.told
    last_step = note.last_step if ending.last_step is None else ending.last_step
    outside = OutsideCause.UNSEEN if ending.note is None else note.outside
    return WorkerExit(
        cause=cause,
        returncode=ending.returncode,
        signum=ending.signum,
        last_step=last_step,
        evidence=tuple(line for line in evidence if line),
        retry=retry,
        outside=OutsideCause(outside) if outside else None,
        sign=sign or sign_of((*evidence, note.traceback)),
        asked_bytes=bytes_asked_for(evidence),
        asks_batch_size=note.asks_batch_size,
        offers_checkpointing=note.offers_checkpointing,
    )


def _raised(note: ExitNote) -> str:
    return f"{note.exception or 'error'}: {_first_line(note.message)}"


def _oom_line(ending: ProcessEnding) -> str:
    return f"the kernel's memory controller killed {ending.oom_kills} process(es) of this group"


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:_SHOWN]


def _peer_line(log_tail: str) -> str:
    """The first line that tells of another rank; empty without one."""
    lines = (line.strip() for line in log_tail.splitlines())
    peers = failure_signs.ANOTHER_RANK
    return next((line for line in lines if failure_signs.outside_fault(line) == peers), "")[:_SHOWN]


def _tail_line(log_tail: str) -> str:
    lines = [line for line in log_tail.splitlines() if line.strip()]
    return f"last output: {lines[-1].strip()[:_SHOWN]}" if lines else ""
