"""Has the states that dead ranks kept in memory written, in a process that has torch."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.own_process import command
from supervisor.storage.run.rundir import RunDirectory

TIMEOUT_S = 600.0
"""As long as ranks that live may take for a checkpoint."""
_LEAVES_S = 10.0
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """A checkpoint that was made of them; see `CheckpointSaved`."""

    step: int
    path: str
    bytes: int
    seconds: float


class RescueProcess:
    """Started when a rank has failed, so that it has imported torch when the others have ended."""

    def __init__(self, rundir: RunDirectory, places: Mapping[str, list[str]]) -> None:
        """Starts it.

        Args:
            rundir: of the run.
            places: local rank → the paths of its places.

        Raises:
            OSError: it cannot be started.
        """
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        order = {"run_dir": str(rundir.root), "places": dict(places)}
        self._process = subprocess.Popen(
            [*command("supervisor.worker.rescue"), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,  # a Ctrl-C that ends the training must not cost its state
        )

    def save(self, step: int) -> Rescued | str:
        """Returns what was saved, or why nothing was. Called once; never raises.

        Args:
            step: of which all ranks, which are dead, have a whole state.
        """
        try:
            output, _ = self._process.communicate(f"{step}\n", TIMEOUT_S)
            told = json.loads((output.strip().splitlines() or ["{}"])[-1])
            if "problem" in told:
                return str(told["problem"])
            return Rescued(**told)
        except subprocess.TimeoutExpired:
            return f"it took longer than {TIMEOUT_S:.0f} s"
        except (OSError, ValueError, TypeError):
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip().splitlines()
            return (said[-1] if said else "the process that writes it has failed")[:_SHOWN]
        finally:
            self.end()

    def end(self) -> None:
        """It is not needed, or has done its work."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVES_S)
        self._said.close()
