"""What error messages of PyTorch, CUDA and Python say about the kind of a failure.

Written for the *first* failure of a process: the exception that left the script. Messages of
teardown (a loader's queue that breaks, a communicator that is aborted) match nothing here.
"""

from __future__ import annotations

import re

from supervisor.records import ExitCause

_DEVICE_MEMORY = re.compile(
    r"(CUDA|HIP|MPS backend|XPU) out of memory"
    r"|(CUDA|HIP) error: out of memory"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
    # cuBLAS cannot make its workspace: with a working driver this is memory, nothing else.
    r"|CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"
    r"|NCCL[^\n]*out of memory|Cuda failure[^\n]*out of memory"
    r"|OutOfMemoryError",
)
_HOST_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|std::bad_alloc"
    r"|Unable to allocate [\d.]+ [KMGT]i?B for an array"
    r"|out of shared memory|insufficient shared memory|\(shm\)"
)
_NONFINITE = re.compile(
    r"\bnan\b|\bnans\b|\binf\b|\binfs\b|not a number|non-?finite|not finite|\binfinit(e|y)\b",
    re.IGNORECASE,
)
_DEVICE_FAULT = re.compile(
    r"uncorrectable ECC|unspecified launch failure|illegal memory access|device-side assert"
    r"|CUBLAS_STATUS_EXECUTION_FAILED|CUDNN_STATUS_EXECUTION_FAILED|unhandled cuda error"
    r"|unhandled system error|remote process exited|has fallen off the bus",
    re.IGNORECASE,
)

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


def memory_cause(exception: str, message: str) -> ExitCause | None:
    """Returns which memory ran out, or None; `exception` is a type's name, dotted or not."""
    name = exception.rsplit(".", 1)[-1]
    if name == "OutOfMemoryError" or _DEVICE_MEMORY.search(message):
        return ExitCause.OUT_OF_MEMORY
    if name in ("MemoryError", "_ArrayMemoryError") or _HOST_MEMORY.search(message):
        return ExitCause.HOST_OUT_OF_MEMORY
    return None


def is_nonfinite(exception: str, message: str) -> bool:
    """Returns whether a script gave up by itself because of NaN or infinity."""
    if exception.rsplit(".", 1)[-1] == "FloatingPointError":
        return True
    return bool(_NONFINITE.search(message))


def is_device_fault(message: str) -> bool:
    """Returns whether the message is one of a failing device, driver or network."""
    return bool(_DEVICE_FAULT.search(message))


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
