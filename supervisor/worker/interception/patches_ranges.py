"""The patch by which a replay does without ranges for a profiler.

Torch opens one in every update, in every `zero_grad` and around every batch: a tenth of a replay.
"""

from __future__ import annotations

from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function


class SilentRanges:
    """Between `begin` and `end` they are opened only where a profiler is at work."""

    def __init__(self) -> None:
        self._original: tuple[Any, Any] | None = None

    def begin(self) -> None:
        enter: Any = record_function.__enter__
        leave: Any = record_function.__exit__
        self._original = enter, leave

        def __enter__(self: Any) -> Any:
            return enter(self) if _profiler_enabled() else self

        def __exit__(self: Any, *raised: Any) -> Any:
            return None if self.record is None else leave(self, *raised)

        _set(__enter__, __exit__)

    def end(self) -> None:
        """May be called again; then it does nothing."""
        if self._original is not None:
            _set(*self._original)
            self._original = None


def _set(enter: Any, leave: Any) -> None:
    record_function.__enter__, record_function.__exit__ = enter, leave  # type: ignore[method-assign]
