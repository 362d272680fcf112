"""The end of a run in one sentence, where the systems that started it look for one."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.parent.terminal.outcome import Outcome

TERMINATION = Path("/dev/termination-log")
"""Kubernetes' default `terminationMessagePath`: `kubectl describe pod` shows what is in it."""
_MOST = 4096
"""Bytes that Kubernetes reads of it."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun, and what starts it (torchx), look for the first failure."""


def leave_last_word(
    outcome: Outcome, line: str, environ: Mapping[str, str], termination: Path = TERMINATION
) -> None:
    """Writes the first closing line for Kubernetes, and for who started this as torchrun.

    What the script has left in the error file stays: it is nearer to the failure. Never raises.
    """
    with contextlib.suppress(OSError):
        if environ.get("KUBERNETES_SERVICE_HOST") and termination.is_file():
            data = line.encode()[:_MOST].decode(errors="ignore")
            termination.write_text(data, encoding="utf-8")
    name = environ.get(ERROR_FILE)
    if not name or outcome.state not in ("gave_up", "failed"):
        return
    with contextlib.suppress(OSError):
        file = Path(name)
        if not file.exists() or not file.stat().st_size:
            file.parent.mkdir(parents=True, exist_ok=True)
            told = {"py_callstack": "", "timestamp": str(int(time.time()))}
            file.write_text(
                json.dumps(
                    {
                        "message": {
                            "message": line,
                            "errorCode": outcome.exit_code,
                            "extraInfo": told,
                        }
                    }
                ),
                encoding="utf-8",
            )
