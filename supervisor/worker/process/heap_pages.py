"""The heap of a worker lies in huge pages; the script does not see how they were asked for."""

from __future__ import annotations

import os

_TUNABLES = "SUPERVISOR_GLIBC_TUNABLES"


def hide_request() -> None:
    """Gives the script the environment that it would have had; called before it can look.

    The C library has read `GLIBC_TUNABLES` at the start of the process (`parent.process`), and no
    process that the script starts should have it.
    """
    told = os.environ.pop(_TUNABLES, None)
    if told:
        os.environ["GLIBC_TUNABLES"] = told
    elif told is not None:
        os.environ.pop("GLIBC_TUNABLES", None)
