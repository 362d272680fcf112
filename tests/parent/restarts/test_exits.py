from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.codes import ExitSign
from supervisor.parent.process.signals import signal_name
from supervisor.parent.restarts.blame import judge_group
from supervisor.parent.restarts.exits import (
    ProcessEnding,
    classify,
    failure_key,
)
from supervisor.parent.watching.collective_records import SilentRank
from supervisor.records import ExitCause
from supervisor.storage.run.exit_notes import EXIT_KINDS, EXIT_PHASES, ExitNote


def raised(
    exception: str, message: str = "", phase: str = "training", has_stepped: bool = True
) -> ProcessEnding:
    note = ExitNote(kind="exception", exception=exception, message=message, phase=phase)
    return ProcessEnding(returncode=1, note=note, has_stepped=has_stepped, last_step=7)


def noted(kind: str, returncode: int = 0, **fields: object) -> ProcessEnding:
    return ProcessEnding(returncode=returncode, note=ExitNote(kind=kind, **fields))  # type: ignore[arg-type]


CASES = {
    "completion marker": (noted("completed"), "completed", False),
    "marker, but we were sent SIGTERM": (
        ProcessEnding(
            returncode=0, note=ExitNote(kind="completed"), asked_by=15, signals_sent=(15,)
        ),
        "interrupted",
        False,
    ),
    "marker, but its process was sent SIGUSR1": (
        ProcessEnding(returncode=0, note=ExitNote(kind="completed"), sent_directly=10),
        "preempted",
        False,
    ),
    "marker of a hung worker that we sent SIGTERM": (
        ProcessEnding(
            returncode=0, note=ExitNote(kind="completed"), sent_directly=15, hang="no step"),
        "hang", True,
    ),
    "marker, and os._exit(3) in what the script does at its exit": (
        noted("completed", 3), "user_error", False),
    "marker, and killed in what the script does at its exit": (
        noted("completed", -9), "killed", True),
    "marker, and the kernel had no memory for that": (
        ProcessEnding(returncode=-9, note=ExitNote(kind="completed"), oom_kills=1),
        "host_out_of_memory", True,
    ),
    "marker, and we ended what did not end by itself": (
        ProcessEnding(
            returncode=-9, note=ExitNote(kind="completed"), signals_sent=(9,), hang="silence"),
        "completed", False,
    ),
    "marker, and a library broke at the exit": (noted("completed", -11), "completed", False),
    "marker, with weights that are not finite": (
        noted("completed", sick="1 of 2 trained weights are not finite"), "nonfinite", False),
    "the handler of the script raises": (
        ProcessEnding(
            returncode=1, note=ExitNote(kind="exception", exception="ValueError"), asked_by=15),
        "interrupted", False,
    ),
    "the script asks and nobody answers": (
        raised("EOFError", "EOF when reading a line", "before_first_step", False),
        "exception", False),
    "it asks for a password": (
        noted("exception", 1, exception="EOFError", traceback="key = getpass.getpass()"),
        "exception", False),
    "a pipe that has ended": (raised("EOFError", "", "before_first_step"), "exception", True),
    "a signal to itself": (
        ProcessEnding(returncode=-9, note=ExitNote(kind="own_signal", code=9)), "killed", True),
    "exit 0 without marker": (ProcessEnding(returncode=0), "exception", True),
    "sys.exit(0)": (noted("system_exit", code=0), "completed", False),
    "sys.exit(3)": (noted("system_exit", 3, code=3), "user_error", False),
    "argparse": (noted("system_exit", 2, code=2, phase="import"), "user_error", False),
    "note interrupted": (noted("interrupted", 75), "interrupted", False),
    "asked by SIGTERM": (ProcessEnding(returncode=-15, asked_by=15), "interrupted", False),
    "asked by SIGUSR1": (
        ProcessEnding(returncode=75, note=ExitNote(kind="interrupted"), asked_by=signal.SIGUSR1),
        "preempted",
        False,
    ),
    "asked, then killed by us": (
        ProcessEnding(returncode=-9, asked_by=15, signals_sent=(15, 9)),
        "interrupted",
        False,
    ),
    "hang": (
        ProcessEnding(returncode=-9, hang="no step for 60 s", signals_sent=(15, 9)), "hang", True,
    ),
    "hang that then saved": (noted("interrupted", 75).__class__(
        returncode=75, note=ExitNote(kind="interrupted"), hang="no step"), "hang", True),
    "ladder wants a restart": (noted("restart", 71), "nonfinite", True),
    "ladder wants to stop": (noted("stop", 71), "nonfinite", False),
    "syntax error": (raised("SyntaxError", phase="import", has_stepped=False), "user_error", False),
    "missing module": (raised("ModuleNotFoundError", phase="import"), "user_error", False),
    "name error at start": (
        raised("NameError", phase="before_first_step", has_stepped=False), "user_error", False),
    "missing file at start": (
        raised("FileNotFoundError", phase="import", has_stepped=False), "user_error", False),
    "name error at the start of a later attempt": (
        raised("NameError", phase="before_first_step"), "exception", True),
    "network at start": (
        raised("ConnectionError", phase="import", has_stepped=False), "exception", True),
    "type error in mid-run": (raised("TypeError", "unsupported operand"), "exception", True),
    "torch's memory error": (raised("torch.OutOfMemoryError", "x"), "out_of_memory", True),
    "CUDA out of memory": (
        raised("RuntimeError", "CUDA out of memory. Tried to allocate 2 GiB"),
        "out_of_memory", True),
    "CUDA out of memory at start": (
        raised("torch.OutOfMemoryError", "x", phase="before_first_step", has_stepped=False),
        "out_of_memory", True),
    "cuBLAS": (
        raised("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
        "out_of_memory", True),
    "NCCL": (
        raised("torch.distributed.DistBackendError",
               "NCCL error: Failed to CUDA calloc: Cuda failure 2 'out of memory'"),
        "out_of_memory", True),
    "MemoryError": (raised("MemoryError"), "host_out_of_memory", True),
    "numpy's memory error": (
        raised("numpy._core._exceptions._ArrayMemoryError",
               "Unable to allocate 8.00 GiB for an array with shape (1,)"),
        "host_out_of_memory", True),
    "CPU allocator": (
        raised("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to"),
        "host_out_of_memory", True),
    "shared memory": (
        raised("RuntimeError",
               "DataLoader worker (pid 3) is killed by signal: Bus error. It is possible that "
               "dataloader's workers are out of shared memory."),
        "host_out_of_memory", True),
    "user's own check for NaN": (
        raised("ValueError", "loss is NaN at step 12"), "nonfinite", True),
    "distribution's check": (
        raised("RuntimeError", "probability tensor contains either `inf`, `nan` or element < 0"),
        "nonfinite", True),
    "FloatingPointError": (raised("FloatingPointError", "overflow"), "nonfinite", True),
    "a word with nan in it": (raised("KeyError", "'finance'"), "exception", True),
    "SIGKILL alone": (ProcessEnding(returncode=-9), "killed", True),
    "SIGKILL with a counted kill": (
        ProcessEnding(returncode=-9, oom_kills=1), "host_out_of_memory", True),
    "SIGSEGV": (ProcessEnding(returncode=-11), "killed", True),
    "SIGTERM by others": (ProcessEnding(returncode=-15), "killed", True),
    "aborted out of memory": (
        ProcessEnding(returncode=-6, log_tail="terminate called\n  what(): std::bad_alloc\n"),
        "host_out_of_memory", True),
    "137 of a shell proves nothing": (
        ProcessEnding(returncode=137, log_tail="Killed\n"), "exception", True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_causes(case: str) -> None:
    ending, cause, retry = CASES[case]

    worker_exit = classify(ending)

    assert (worker_exit.cause.value, worker_exit.retry) == (cause, retry)
    assert worker_exit.evidence
    assert all(worker_exit.evidence)


def test_sigkill_without_proof_says_so() -> None:
    worker_exit = classify(ProcessEnding(returncode=-9, memory="last memory sample: 3.00 GiB"))

    assert worker_exit.signum == signal.SIGKILL
    assert "no proof that memory ran out" in worker_exit.evidence[1]
    assert worker_exit.evidence[2].startswith("last memory sample")


def test_collectives_that_do_not_match_are_named() -> None:
    gloo = (
        "what(): [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. "
        "164 vs 4. Is there a distributed collective mismatch in your code?"
    )
    torch_said = "Detected mismatch between collectives on ranks. Rank 0 is running collective"

    aborted = classify(ProcessEnding(returncode=-6, log_tail=gloo))
    told = classify(raised("RuntimeError", torch_said))

    assert aborted.evidence[0].startswith("the ranks' collectives do not match")
    assert any("the ranks' collectives do not match" in line for line in told.evidence)
    assert (aborted.cause.value, told.cause.value) == ("killed", "exception")


NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error"
REAL_MESSAGES = [
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
     "capacity of 31.75 GiB", "out_of_memory", "torch found no room"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     "out_of_memory", "cuBLAS found no room"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
     "`cublasCreate(handle)`", "out_of_memory", "cuBLAS found no room"),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "out_of_memory", "cuDNN"),
    ("torch.distributed.DistBackendError", f"{NCCL} (run with NCCL_DEBUG=INFO for details), NCCL "
     "version 2.26.2\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
     "Cuda failure 2 'out of memory'", "out_of_memory", "NCCL found no room"),
    ("torch.distributed.DistBackendError", f"{NCCL}\nncclUnhandledCudaError: Call to CUDA function "
     "failed.\nLast error:\nFailed to CUDA calloc async 608 bytes", "out_of_memory",
     "NCCL found no room"),
    ("torch.distributed.DistBackendError", f"{NCCL}\nncclUnhandledCudaError: Call to CUDA function "
     "failed.\nLast error:\nCuda failure 999 'unknown error'", "exception", "failing device"),
    ("torch.distributed.DistBackendError", "NCCL error in: ../NCCLUtils.hpp:219, remote process "
     "exited or there was a network error, NCCL version 2.18.1", "exception", "the network"),
    ("RuntimeError", "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
     "allocate memory: you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)",
     "host_out_of_memory", "the host ran out of memory"),
    ("RuntimeError", "DataLoader worker (pid 3002) is killed by signal: Bus error. It is possible "
     "that dataloader's workers are out of shared memory. Please try to raise your shared memory "
     "limit.", "host_out_of_memory", "/dev/shm"),
    ("RuntimeError", "CUDA error: uncorrectable ECC error encountered", "exception",
     "failing device"),
    ("RuntimeError", "CUDA error: unspecified launch failure\nCUDA kernel errors might be "
     "asynchronously reported", "exception", "failing device"),
    ("RuntimeError", "CUDA error: device-side assert triggered", "exception", "index or label"),
    ("KeyError", "Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most "
     "recent call last):", "exception", "worker of a data loader"),
    ("OSError", "[Errno 5] Input/output error: '/data/train/0017.tar'", "exception", "a disk"),
    ("OSError", "[Errno 116] Stale file handle", "exception", "a disk"),
]  # fmt: skip


@pytest.mark.parametrize(("exception", "message", "cause", "words"), REAL_MESSAGES)
def test_what_torch_says_is_told_apart_with_evidence(
    exception: str, message: str, cause: str, words: str
) -> None:
    worker_exit = classify(raised(exception, message))

    assert (worker_exit.cause.value, worker_exit.retry) == (cause, True)
    assert words in " | ".join(worker_exit.evidence[1:])


def test_the_last_step_is_the_recorders_before_the_notes() -> None:
    note = ExitNote(kind="exception", exception="RuntimeError", last_step=8)

    assert classify(ProcessEnding(returncode=1, note=note, last_step=7)).last_step == 7
    assert classify(ProcessEnding(returncode=1, note=note)).last_step == 8


def test_failures_that_differ_in_addresses_alone_are_the_same() -> None:
    one = classify(raised("RuntimeError", "bad pointer 0x7f01 of process 12"))
    other = classify(raised("RuntimeError", "bad pointer 0x8f99 of process 345"))

    assert failure_key(one) == failure_key(other)
    assert failure_key(one) != failure_key(classify(raised("RuntimeError", "something else")))


def test_a_signal_without_a_name_has_its_number() -> None:
    assert signal_name(15) == "SIGTERM"
    assert signal_name(99) == "signal 99"


@settings(max_examples=50, deadline=None)
@given(
    returncode=st.integers(-64, 255),
    kind=st.sampled_from((None, *EXIT_KINDS, "unheard of")),
    phase=st.sampled_from(EXIT_PHASES),
    exception=st.text(max_size=20),
    message=st.text(max_size=50),
    hang=st.sampled_from((None, "no step")),
    asked_by=st.sampled_from((None, 2, 10, 15)),
    log_tail=st.text(max_size=50),
)
def test_every_ending_has_a_cause_and_evidence(
    returncode: int,
    kind: str | None,
    phase: str,
    exception: str,
    message: str,
    hang: str | None,
    asked_by: int | None,
    log_tail: str,
) -> None:
    note = kind and ExitNote(kind=kind, exception=exception, message=message, phase=phase)
    ending = ProcessEnding(
        returncode=returncode, note=note or None, hang=hang, asked_by=asked_by, log_tail=log_tail
    )

    worker_exit = classify(ending)

    assert isinstance(worker_exit.cause, ExitCause)
    assert worker_exit.evidence
    assert not (worker_exit.cause is ExitCause.COMPLETED and worker_exit.retry)


@pytest.mark.parametrize(
    ("message", "traceback", "sign", "asked"),
    [
        ("[Errno 28] No space left on device", "", ExitSign.NO_SPACE, None),
        ("PytorchStreamWriter failed", "OSError: File too large", ExitSign.FILE_TOO_LARGE, None),
        ("DataLoader worker (pid 7) exited unexpectedly", "", ExitSign.LOADER_DIED, None),
        ("DefaultCPUAllocator: you tried to allocate 4096 bytes", "", None, 4096),
        ("no words", "no words", None, None),
    ],
)
def test_what_is_said_of_an_end_becomes_a_code(
    message: str, traceback: str, sign: ExitSign | None, asked: int | None
) -> None:
    note = ExitNote(
        kind="exception", exception="RuntimeError", message=message, traceback=traceback
    )

    ended = classify(ProcessEnding(returncode=1, note=note))

    assert (ended.sign, ended.asked_bytes) == (sign, asked)


def test_a_script_that_ends_itself_has_a_code() -> None:
    note = ExitNote(kind="system_exit", code=3)

    assert classify(ProcessEnding(returncode=3, note=note)).sign is ExitSign.OWN_EXIT


def of_rank(rank: int, returncode: int = 1, **more: Any) -> ProcessEnding:
    return ProcessEnding(rank=rank, returncode=returncode, **more)


def out_of_memory(rank: int, time: float) -> ProcessEnding:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB"
    note = ExitNote(kind="exception", exception="torch.OutOfMemoryError", message=text, time=time)
    return of_rank(rank, note=note, has_stepped=True)


def of_peer(rank: int, time: float) -> ProcessEnding:
    text = "[pair.cc:553] Connection closed by peer [127.0.0.1]:9444"
    note = ExitNote(kind="exception", exception="RuntimeError", message=text, time=time)
    return of_rank(rank, note=note, has_stepped=True)


NCCL_WAITED = (
    "[rank0]:[E1218 20:27:21.42 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=72, NumelOut=72, "
    "Timeout(ms)=600000) ran for 600081 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
NCCL_TOLD = (
    "[rank2]:[F1218 20:27:22.48 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 2] Terminating "
    "the process after attempting to dump debug info, due to collective timeout or exception.\n"
)
NCCL_PEER_GONE = (
    "[rank0]:[E ProcessGroupNCCL.cpp:1795] [Rank 0] Process group watchdog thread terminated with "
    "exception: NCCL error: remote process exited or there was a network error\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\n"
)


def waited(rank: int, entered: int) -> ProcessEnding:
    text = "[unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
    note = ExitNote(kind="exception", exception="RuntimeError", message=text, time=4.0)
    return of_rank(rank, note=note, has_stepped=True, seen=silent(rank, entered))


def silent(rank: int, entered: int, *frames: str) -> SilentRank:
    return SilentRank(rank=rank, collectives=entered, last_step=7, frames=frames)


WAITED: dict[str, tuple[list[ProcessEnding], int]] = {
    "gloo": (
        [waited(0, 6), of_rank(1, -9, signals_sent=(12, 9), seen=silent(1, 5, "load (a.py:3)"))],
        1,
    ),
    "NCCL": (
        [
            of_rank(0, -6, log_tail=NCCL_WAITED, seen=silent(0, 6)),
            of_rank(1, -9, signals_sent=(12, 9), seen=silent(1, 5, "load (a.py:3)")),
            of_rank(2, -6, log_tail=NCCL_TOLD, seen=silent(2, 6)),
        ],
        1,
    ),
    "NCCL ends the one that does not come, too": (
        [
            of_rank(0, -6, log_tail=NCCL_TOLD, seen=silent(0, 5, "load (a.py:3)")),
            of_rank(1, -6, log_tail=NCCL_WAITED, seen=silent(1, 6)),
        ],
        0,
    ),
}


@pytest.mark.parametrize("name", WAITED)
def test_where_ranks_wait_for_too_long_the_one_that_has_not_come_is_named(name: str) -> None:
    endings, rank = WAITED[name]

    found = judge_group(endings)

    assert (found.cause, found.rank) == (ExitCause.HANG, rank)
    assert found.evidence[0].endswith(f"rank {rank} has entered 5 collectives, another 6")
    assert found.evidence[1] == f"rank {rank} was in load (a.py:3)"
    assert re.search("tim(e|ed) ?out", found.evidence[2], re.IGNORECASE)


def test_nccl_that_aborts_because_a_peer_has_gone_tells_of_it() -> None:
    alone = classify(of_rank(0, -6, log_tail=NCCL_PEER_GONE))
    both = judge_group([of_rank(0, -6, log_tail=NCCL_PEER_GONE), of_rank(1, -9)])

    assert "remote process exited" in alone.evidence[0]
    assert any("another rank" in line for line in alone.evidence)
    assert (both.cause, both.rank) == (ExitCause.KILLED, 1)


GROUPS: dict[str, tuple[list[ProcessEnding], ExitCause, int]] = {
    "one of eight runs out of memory, and its launcher ends the others": (
        [*(of_rank(r, -15) for r in range(5)), out_of_memory(5, 7.0), of_rank(6, -15)],
        ExitCause.OUT_OF_MEMORY,
        5,
    ),
    "the first of two to fail is the cause": (
        [
            out_of_memory(0, 9.0),
            of_rank(
                1,
                note=ExitNote(kind="exception", exception="ValueError", time=8.0),
                has_stepped=True,
            ),
        ],
        ExitCause.EXCEPTION,
        1,
    ),
    "one hangs, and the watchdog kills all": (
        [of_rank(0, -9, signals_sent=(9,)), of_rank(1, -9, hang="no step for 60 s")],
        ExitCause.HANG,
        1,
    ),
    "one was killed, and its peers tell of a closed connection": (
        [of_peer(0, 5.0), of_rank(1, -9), of_rank(2, -9, signals_sent=(9,))],
        ExitCause.KILLED,
        1,
    ),
    "one was killed while others waited for it for too long": (
        [waited(0, 6), of_rank(1, -9, seen=silent(1, 5))],
        ExitCause.KILLED,
        1,
    ),
    "one raises, and a peer is told before it": (
        [
            of_peer(0, 5.0),
            of_rank(
                1,
                note=ExitNote(kind="exception", exception="KeyError", message="x", time=6.0),
                has_stepped=True,
            ),
        ],
        ExitCause.EXCEPTION,
        1,
    ),
    "all are preempted": (
        [of_rank(0, 75, asked_by=10), of_rank(1, 75, asked_by=10)],
        ExitCause.PREEMPTED,
        0,
    ),
    "one has completed, and another was killed": (
        [of_rank(0, 0, note=ExitNote(kind="completed")), of_rank(1, -9)],
        ExitCause.KILLED,
        1,
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_of_a_group_the_rank_that_failed_first_is_the_cause(name: str) -> None:
    endings, cause, rank = GROUPS[name]

    found = judge_group(endings)

    assert found.cause is cause
    assert found.evidence[-1] == f"rank {rank} ended first of {len(endings)}"


def test_a_group_of_one_is_told_as_it_is() -> None:
    assert judge_group([out_of_memory(0, 1.0)]) == classify(out_of_memory(0, 1.0))


def test_a_rank_that_was_killed_after_its_end_is_not_blamed_for_another() -> None:
    over = of_rank(0, -15, note=ExitNote(kind="completed", time=1.0))
    failed = of_rank(1, 1, note=ExitNote(kind="exception", exception="ValueError", time=2.0))

    assert judge_group([over, failed]).rank == 1


def test_a_group_has_completed_when_all_have() -> None:
    done = [of_rank(rank, 0, note=ExitNote(kind="completed")) for rank in range(3)]

    assert judge_group(done).cause is ExitCause.COMPLETED


def test_what_a_process_sends_itself_does_not_come_from_outside() -> None:
    ending = ProcessEnding(returncode=-6, note=ExitNote(kind="own_signal", code=6))

    worker_exit = classify(ending)

    assert worker_exit.evidence[0] == "SIGABRT, which the process sent to itself"
    assert worker_exit.sign is ExitSign.OWN_SIGNAL


def test_a_script_whose_handler_raises_is_told_in_one_line() -> None:
    note = ExitNote(
        kind="exception", exception="ValueError", message="bad", stopped_by=15, stopped_s=0.5
    )

    worker_exit = classify(ProcessEnding(returncode=1, note=note, asked_by=15))

    assert worker_exit.evidence == (
        "the supervisor was sent SIGTERM; the script raised 0.5 s later: ValueError: bad",
    )
    assert worker_exit.stopped_by == signal.SIGTERM


def test_a_dead_agent_takes_its_ranks_with_it_and_none_is_blamed() -> None:
    lost = "the agent that starts the ranks has ended (SIGKILL), they with it"

    found = judge_group([of_rank(0, -9, lost=lost), of_rank(1, -9, lost=lost)])

    assert (found.cause, found.evidence, found.rank) == (ExitCause.KILLED, (lost,), None)


def test_whose_errors_tell_of_the_first_are_known() -> None:
    found = judge_group([of_peer(0, 8.0), of_rank(1, -9), of_peer(2, 7.0)])

    assert (found.rank, found.following) == (1, (0, 2))
