"""What error messages of PyTorch, CUDA and Python say about the kind of a failure.

Written for the *first* failure of a process: the exception that left the script. Messages of
teardown (a loader's queue that breaks, a communicator that is aborted) match nothing here.
"""

from __future__ import annotations

import re

from supervisor.codes import ExitCause, OutsideCause

_MEMORY: tuple[tuple[ExitCause, str, re.Pattern[str]], ...] = (
    (
        ExitCause.OUT_OF_MEMORY,
        "NCCL found no room on the device for its buffers: it cannot use torch's cache",
        re.compile(
            r"NCCL[^\n]*out of memory|Cuda failure[^\n]*out of memory"
            r"|Failed to (CUDA|Cuda) (calloc|malloc)"
        ),
    ),
    (
        ExitCause.OUT_OF_MEMORY,
        "cuBLAS found no room on the device for its workspace",
        # Not initialized: with a working driver this is memory, nothing else.
        re.compile(r"CUBLAS_STATUS_ALLOC_FAILED|CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"),
    ),
    (
        ExitCause.OUT_OF_MEMORY,
        "cuDNN found no room on the device for its workspace",
        re.compile(
            r"CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
        ),
    ),
    (
        ExitCause.OUT_OF_MEMORY,
        "torch found no room on the device",
        re.compile(
            r"(CUDA|HIP|MPS backend|XPU) out of memory|(CUDA|HIP) error: out of memory"
            r"|OutOfMemoryError"
        ),
    ),
    (
        ExitCause.HOST_OUT_OF_MEMORY,
        "shared memory (/dev/shm) is full: fewer loader workers, or more of it",
        re.compile(r"out of shared memory|insufficient shared memory|\(shm\)"),
    ),
    (
        ExitCause.HOST_OUT_OF_MEMORY,
        "the host ran out of memory, not a device",
        re.compile(
            r"can't allocate memory|Cannot allocate memory|std::bad_alloc"
            r"|Unable to allocate [\d.]+ [KMGT]i?B for an array"
        ),
    ),
)
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
_NONFINITE = re.compile(
    r"\bnan\b|\bnans\b|\binf\b|\binfs\b|not a number|non-?finite|not finite|\binfinit(e|y)\b",
    re.IGNORECASE,
)
ANOTHER_RANK = "the network, or another rank that has gone"
"""What peers of a rank that ended tell first: they were in the middle of talking to it."""

_TIMED_OUT = (
    r"collective operation timeout|collective timeout|NCCL operations have failed or timed out|"
    r"Timed out waiting \d+ms for (send|recv) operation|wait timeout after \d+ms|"
    r"Timed out after \d+ seconds waiting for clients|failed to pass monitoredBarrier"
)
"""NCCL's watchdog, gloo, and the store by which ranks meet."""

_OUTSIDE: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "a failing device or driver: another attempt may meet it again on this machine",
        re.compile(
            r"uncorrectable ECC|unspecified launch failure|hardware stack error|misaligned address"
            r"|CUBLAS_STATUS_EXECUTION_FAILED|CUDNN_STATUS_EXECUTION_FAILED"
            r"|has fallen off the bus|GPU is lost|no CUDA-capable device|unknown error"
            r"|CUDA-capable device\(s\) is/are busy|driver shutting down|illegal instruction"
            r"|system not yet initialized|unhandled cuda error|illegal memory access",
            re.IGNORECASE,
        ),
    ),
    (
        "usually an index or label out of range: run once with CUDA_LAUNCH_BLOCKING=1",
        re.compile(r"device-side assert", re.IGNORECASE),
    ),
    (
        ANOTHER_RANK,
        re.compile(
            r"unhandled system error|ncclSystemError|remote process exited|ncclRemoteError|"
            r"connection (closed|reset) by|connection refused|broken pipe|no route to host|"
            + _TIMED_OUT,
            re.IGNORECASE,
        ),
    ),
    (
        "a disk or file system",
        re.compile(
            r"input/output error|no space left on device|stale file handle|transport endpoint",
            re.IGNORECASE,
        ),
    ),
)
_MISMATCH = re.compile(
    r"collective mismatch in your code|Detected mismatch between collectives on ranks"
)
_LOADER = re.compile(r"in DataLoader worker process \d+|DataLoader worker \(pid[^)]*\)")
# Raised before the first step of a run, these come again however often it is started. Errors that
# a network, a disk or a device may cause (OSError, RuntimeError, ConnectionError) are not here.
_START_ERRORS = frozenset(
    {
        "SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError",
        "NameError", "UnboundLocalError", "TypeError", "AttributeError", "KeyError", "IndexError",
        "ValueError", "AssertionError", "NotImplementedError", "ZeroDivisionError",
        "FileNotFoundError", "IsADirectoryError", "NotADirectoryError", "PermissionError",
        "ArgumentError", "UsageError", "ConfigError",
    }
)  # fmt: skip
# These cannot be cured by another attempt even if an earlier one of this run made steps.
_NEVER_HELPED = frozenset({"SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError"})


def memory_shortage(exception: str, message: str) -> tuple[ExitCause, str] | None:
    """Returns which memory ran out, and a sentence that says for whom; None if none did.

    Args:
        exception: a type's name, dotted or not.
        message: all of it: what NCCL says last tells the kind.
    """
    for cause, words, sign in _MEMORY:
        if sign.search(message):
            return cause, words
    name = exception.rsplit(".", 1)[-1]
    if name == "OutOfMemoryError":
        return ExitCause.OUT_OF_MEMORY, "torch found no room on the device"
    if name in ("MemoryError", "_ArrayMemoryError"):
        return ExitCause.HOST_OUT_OF_MEMORY, "the host ran out of memory, not a device"
    return None


def is_nonfinite(exception: str, message: str) -> bool:
    """Returns whether a script gave up by itself because of NaN or infinity."""
    if exception.rsplit(".", 1)[-1] == "FloatingPointError":
        return True
    return bool(_NONFINITE.search(message))


def outside_fault(message: str) -> str:
    """Returns what outside the script such a message comes from; empty if that is not known."""
    return next((words for words, sign in _OUTSIDE if sign.search(message)), "")


def is_of_device(message: str) -> bool:
    """Returns whether CUDA, one of its libraries or NCCL raised it; that alone says not why."""
    return bool(re.search(r"\bCUDA\b|CUBLAS_|CUDNN_|CUFFT_|NCCL|AcceleratorError", message))


def is_vain_wait(message: str) -> bool:
    """Returns whether it tells of a time limit for other ranks, which did not come."""
    return bool(re.search(_TIMED_OUT, message, re.IGNORECASE))


def collective_mismatch(text: str) -> str:
    """Returns what it means where gloo or torch found that ranks called different collectives;
    empty if `text` does not tell that."""
    if not _MISMATCH.search(text):
        return ""
    return "the ranks' collectives do not match: one has skipped one, or gave another size"


def is_loader_failure(message: str) -> bool:
    """Returns whether a loader's worker raised it, or was ended."""
    return bool(_LOADER.search(message))


def is_killed_child(message: str) -> bool:
    """Returns whether a process of the script's own was killed, as a loader tells it."""
    return "killed by signal" in message


def asks_in_vain(exception: str, message: str, traceback: str) -> bool:
    """Returns whether `input` or `getpass` found the end of standard input."""
    return exception == "EOFError" and (
        "EOF when reading a line" in message or "getpass" in traceback
    )


def is_users_mistake(exception: str, phase: str, *, has_stepped: bool) -> bool:
    """Returns whether starting again cannot help, because the script itself is wrong.

    Args:
        exception: name of the type.
        phase: ``import``, ``before_first_step`` or ``training``, of this attempt.
        has_stepped: an earlier attempt of this run made steps, so the script does work.
    """
    name = exception.rsplit(".", 1)[-1]
    if phase == "training":
        return False
    return name in _NEVER_HELPED or (name in _START_ERRORS and not has_stepped)
