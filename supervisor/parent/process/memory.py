"""Samples of host memory while the worker lives."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.free_memory import free_bytes

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Resident memory of a worker with its descendants, and what is free, in GiB."""

    resident_gib: float
    available_gib: float

    def __str__(self) -> str:
        return (
            f"last memory sample: {self.resident_gib:.2f} GiB used by the worker, "
            f"{self.available_gib:.2f} GiB free"
        )


def sample_memory(resident_bytes: int) -> MemorySample:
    """Takes a sample."""
    return MemorySample(resident_gib=resident_bytes / _GIB, available_gib=free_bytes() / _GIB)
