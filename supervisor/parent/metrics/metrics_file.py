"""Writes the metrics for node_exporter's textfile collector, on a thread of its own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

EVERY_S = 5.0
LAST_WRITE_S = 5.0
"""How long the end of a run waits for a disk that does not answer."""
MODE = 0o644
"""node_exporter runs as a user of its own; the file holds no more than the port tells."""


class MetricsFile:
    """Keeps `path` a few seconds old at most, from `begin` to `close`.

    Args:
        path: to write.
        document: returns what to write; called in the thread.

    Raises:
        OSError: its folder is missing or cannot be written.
    """

    def __init__(
        self, path: Path, document: Callable[[], str], *, every_s: float = EVERY_S
    ) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._path = path
        self._document = document
        self._every_s = every_s
        self._problem: str | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Writes from now on; further calls do nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="metrics file", daemon=True)
            self._thread.start()

    def problem(self) -> str | None:
        """Returns once why the file could not be written."""
        problem, self._problem = self._problem, None
        return problem

    def close(self) -> None:
        """Writes the last figures, if there were any."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(LAST_WRITE_S)

    def _keep(self) -> None:
        told = False
        while True:
            is_over = self._over.is_set()
            try:
                self._write()
                told = False
            except OSError as error:
                if not told:
                    self._problem = f"metrics_textfile: {self._path}: {error.strerror or error}"
                told = True
            if is_over:
                return
            self._over.wait(self._every_s)

    def _write(self) -> None:
        staged = self._path.with_name(f".{self._path.name}.{os.getpid()}.staged")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(staged, flags, MODE), "w", encoding="utf-8") as file:
                file.write(self._document())
            os.replace(staged, self._path)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
