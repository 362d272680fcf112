"""A line for whoever waits."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

AFTER_S, EVERY_S = 2.0, 15.0
"""Nobody asks about shorter waits; longer ones are told again."""


@contextlib.contextmanager
def told_if_long(
    what: str, *, after_s: float = AFTER_S, every_s: float = EVERY_S
) -> Iterator[None]:
    """Says at the terminal what is being done, and for how long, once it has taken `after_s`.

    Only where somebody can wait there: standard error is a terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        began_s, wait_s = time.monotonic(), after_s
        while not ended.wait(wait_s):
            wait_s = every_s
            took_s = time.monotonic() - began_s
            with contextlib.suppress(OSError, ValueError):  # nobody reads it
                print(f"supervisor: {what}, for {took_s:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
