"""What Kubeflow Trainer is told of its TrainJob: progress, time left, figures, state.

The controller names the endpoint in the pods' environment. Its rules: one POST in 5 s at most, a
token that rotates and is read each time, and no error of it may reach the training.
"""

from __future__ import annotations

import json
import math
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.own_process import KUBEFLOW_URL
from supervisor.parent.metrics.reporter import Reporter
from supervisor.parent.metrics.run_figures import Metric

CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
OFF = "DISABLE_KUBEFLOW_INTEGRATION"
"""Transformers' variable, which switches its own reports off."""
EVERY_S = 5.0
TIMEOUT_S = 5.0
_SHOWN = ("training_loss", "training_gradient_norm", "training_learning_rate", "training_risk")
_TEXT = 64
"""Letters that a metric's value may have."""


def is_asked(environ: Mapping[str, str]) -> bool:
    """Whether the process runs in a TrainJob that takes reports, and nobody else makes them."""
    off = environ.get(OFF, "").upper() == "TRUE"
    return bool(environ.get(KUBEFLOW_URL) and environ.get(TOKEN)) and not off


def status_of(
    metrics: list[Metric], state: str, total_steps: float, now: datetime | None = None
) -> dict[str, Any]:
    """Returns the document of one report.

    Args:
        metrics: of the run, as they are served.
        state: of the run.
        total_steps: how many it will make; NaN where the script does not tell.
        now: default: the present.
    """
    known = {metric.name: metric.samples[0][1] for metric in metrics if metric.samples}
    stamp = (now or datetime.now(timezone.utc)).isoformat(timespec="seconds")
    status: dict[str, Any] = {"lastUpdatedTime": stamp.replace("+00:00", "Z")}
    step = known.get("training_step")
    if state == "completed":
        status |= {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
    elif step is not None and 0 < total_steps < 2**53:
        left = max(0.0, total_steps - step - 1)
        status["progressPercentage"] = max(0, min(99, math.floor(100 * (1 - left / total_steps))))
        took_s = known.get("training_step_seconds")
        if took_s is not None and left * took_s < 2**31:
            status["estimatedRemainingSeconds"] = round(left * took_s)
    shown = {"state": state}
    if step is not None:
        shown["step"] = f"{step:.0f}"
    shown |= {name[9:]: f"{known[name]:.6g}" for name in _SHOWN if name in known}
    status["metrics"] = [{"name": n, "value": value[:_TEXT]} for n, value in shown.items()]
    return {"trainerStatus": status}


class TrainerStatus(Reporter):
    """Reports to the endpoint; the last report waits until it may be made.

    Args:
        environ: names the endpoint, see `is_asked`.
        document: returns a report, or None while there is nothing to say; called in the thread.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        document: Callable[[], dict[str, Any] | None],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        super().__init__("trainer status", every_s, every_s + TIMEOUT_S)
        self._url, self._token = environ[KUBEFLOW_URL], Path(environ[TOKEN])
        self._ca = environ.get(CA_CERT) or None
        self._document = document
        self._posted_s = -math.inf

    def _report(self) -> None:
        time.sleep(max(0.0, self._posted_s + self._every_s - time.monotonic()))
        document = self._document()
        if document is not None:
            self._posted_s = time.monotonic()
            self._post(document)

    def _words(self, error: Exception) -> str:
        return f"Kubeflow Trainer was not told of the progress: {type(error).__name__}: {error}"

    def _post(self, document: dict[str, Any]) -> None:
        request = urllib.request.Request(
            self._url,
            data=json.dumps(document).encode(),
            headers={
                "Authorization": f"Bearer {self._token.read_text().strip()}",
                "Content-Type": "application/json",
            },
            method="POST",
        )
        context = ssl.create_default_context(cafile=self._ca) if self._url[:6] == "https:" else None
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            answer.read()
