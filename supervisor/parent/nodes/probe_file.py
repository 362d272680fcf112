"""Whether two nodes see the same run directory: one writes a secret, the other reads it.

Who can read it may join: the run directory is private to its user.
"""

from __future__ import annotations

import secrets
import time
import uuid
from pathlib import Path

from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.rundir import RunDirectory

_LOOKS_S = 10.0
_LOOK_S = 0.5


class ProbeFile:
    """The first parent's.

    Attributes:
        name: relative to the run directory, new each time, so that no disk has an old view of it.
        secret: its content.
    """

    def __init__(self, rundir: RunDirectory) -> None:
        """Writes it.

        Raises:
            OSError: the disk refuses.
        """
        self.secret = secrets.token_hex(16)
        self._path = rundir.make(rundir.nodes) / f"probe_{uuid.uuid4().hex}"
        self.name = str(self._path.relative_to(rundir.root))
        write_private(self._path, self.secret)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def read_probe(rundir: RunDirectory, name: str, within_s: float = _LOOKS_S) -> str | None:
    """Returns the secret; None if it cannot be seen here."""
    path = rundir.root / name
    if not Path(name).name.startswith("probe_") or path.parent != rundir.nodes:
        return None
    deadline = time.monotonic() + within_s
    while True:
        try:
            return path.read_text()
        except OSError:
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_S)
