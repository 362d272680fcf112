"""Objects of Python that ranks have told each other, on the tape: plain values and tensors."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch

from supervisor.errors import ReplayError
from supervisor.storage.steps.tape import EntryKind, TapeWriter
from supervisor.storage.steps.tape_reader import TapeReader
from supervisor.training_state.plain_form import from_plain, to_plain
from supervisor.training_state.tensors import outside_autograd

LARGEST = 1 << 23
"""Bytes of one exchange; more are data rather than figures."""
_WHOLE, _ASK_AGAIN, _LOST = b"w", b"a", b"l"


def note_objects(tape: TapeWriter, place: list[Any] | None, result: Any, *, all_have: bool) -> None:
    """Writes what came of an exchange of objects on the tape.

    Args:
        place: the list into which they came; None for none.
        result: what the exchange has returned.
        all_have: every rank has the same ones behind it: what cannot be recorded is exchanged again
            in a replay.
    """
    left_out: list[str] = []
    came = to_plain([result, list(place or ())], "objects", left_out)
    data = _packed(came) if not left_out else b""
    if left_out or len(data) > LARGEST:
        why = left_out[0] if left_out else f"{len(data):,} bytes are too many"
        tape.append(EntryKind.OBJECTS, (_ASK_AGAIN if all_have else _LOST) + why.encode())
    else:
        tape.append(EntryKind.OBJECTS, _WHOLE + data)


def recorded_objects(tape: TapeReader, place: list[Any] | None, exchange: Callable[[], Any]) -> Any:
    """Returns and puts into `place` what the recorded run got here.

    Args:
        exchange: does so for real, on all ranks.

    Raises:
        ReplayError: nothing was exchanged here, or it was not recorded.
    """
    entry = tape.take(EntryKind.OBJECTS)
    kind, data = entry[:1], entry[1:]
    if kind == _ASK_AGAIN:
        return exchange()
    if kind == _LOST:
        raise ReplayError(f"what another rank told was not recorded: {data.decode()}")
    plain = torch.load(io.BytesIO(data), weights_only=True)
    result, came = from_plain(plain)
    if place is not None:
        place[:] = came
    return result


def _packed(plain: Any) -> bytes:
    file = io.BytesIO()
    with outside_autograd():
        torch.save(plain, file)
    return file.getvalue()
