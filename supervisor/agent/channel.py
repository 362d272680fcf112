"""Orders from the parent, and reports to it: JSON lines."""

from __future__ import annotations

import json
import os
import select
from typing import Any


class Channel:
    """Read by the agent between its looks at the ranks; never blocks longer than it is told to."""

    def __init__(self, orders: int, reports: int) -> None:
        """Both are file descriptors; `reports` may be inherited by nobody."""
        self._orders = orders
        self._reports = os.dup(reports)
        self._unread = b""
        self.is_closed = False

    def report(self, **what: Any) -> None:
        """Sends one report; one that nobody reads any more is lost."""
        try:
            os.write(self._reports, json.dumps(what).encode() + b"\n")
        except OSError:
            self.is_closed = True

    def next_order(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Returns the next order; None if none came in time, or the channel is closed."""
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._orders], [], [], timeout_s)
            if not ready:
                return None
            data = os.read(self._orders, 65536)
            if not data:
                self.is_closed = True
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order
