"""How far a fast-forward has come, in words, for the terminal and for `supervisor watch`."""

from __future__ import annotations

import struct
from pathlib import Path

_COUNTER = struct.Struct("<Q")


def replayed_steps(path: Path, since_s: float) -> int | None:
    """Steps that the fast-forward of this attempt has done; None while there is none.

    Args:
        path: `RunDirectory.replayed`, which the worker maps.
        since_s: unix time at which the attempt began.
    """
    try:
        data = path.read_bytes()
        # Writing to a mapped file does not update its time, which is that of the mapping or later.
        fresh = path.stat().st_mtime >= since_s - 1.0
    except OSError:
        return None
    return int(_COUNTER.unpack(data)[0]) if fresh and len(data) == _COUNTER.size else None


def describe_replay(done: int, target: int, elapsed_s: float) -> str:
    """Returns one line.

    Args:
        done, target: steps.
        elapsed_s: since the attempt began, its start included: the time left is an upper bound.
    """
    done = min(done, target)
    text = f"fast-forwarding: {done} of {target} steps"
    if target:
        text += f" ({100 * done // target} %)"
    text += f", for {elapsed_s:.0f} s"
    if 0 < done < target:
        text += f", at most {elapsed_s * (target - done) / done:.0f} s left"
    return text
