"""What a script reads out of tensors, and which objects its ranks exchange, on the tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.recording.recording import Recording
from supervisor.worker.recording.told_objects import note_objects

Call: TypeAlias = Callable[[], Any]


class ScriptReads(ABC):
    """Both sides: every method returns what the script gets. In the training's own thread."""

    @abstractmethod
    def read(self, kind: int, call: Call) -> Any:
        """The script reads a value out of a tensor; `kind` is an `EntryKind`."""

    @abstractmethod
    def read_all(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The script has read all of a tensor into an array or a list.

        Returns:
            What it is to read instead; None where it has read the right thing.
        """

    @abstractmethod
    def objects(self, place: list[Any] | None, call: Call, *, all_have: bool) -> Any:
        """Ranks exchange objects of Python, as by ``all_gather_object``.

        Args:
            place: the list into which they come; None for none.
            all_have: behind it all ranks have the same ones.
        """

    @abstractmethod
    def plans(self, call: Call) -> Any:
        """Ranks exchange objects by which torch writes or reads one checkpoint of all of them."""


class LiveReads(ScriptReads):
    """Writes down what comes."""

    def __init__(
        self, recording: Recording, interception: InterceptionState, barrier: ErrorBarrier
    ) -> None:
        self._recording = recording
        self._interception = interception
        self._reading = barrier("reads", records=True)
        self._exchanging = barrier("objects", records=True)

    def read(self, kind: int, call: Call) -> Any:
        return self._recording.read(kind, call)

    def read_all(self, tensor: torch.Tensor) -> None:
        with self._reading, self._interception.region():
            self._recording.large.note(tensor)

    def objects(self, place: list[Any] | None, call: Call, *, all_have: bool) -> Any:
        with self._interception.region():
            result = call()
            with self._exchanging:
                note_objects(self._recording.tape, place, result, all_have=all_have)
            return result

    def plans(self, call: Call) -> Any:
        with self._interception.region():
            return call()
