"""How Prometheus gets the metrics: asked on a port, or from a file. Kubernetes' probes."""

from __future__ import annotations

import errno
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from supervisor.parent.metrics.reporter import Reporter
from supervisor.parent.metrics.run_figures import CONTENT_TYPE

TIMEOUT_S = 5.0
"""For a client that connects and says nothing."""
POLL_S = 0.2
"""So long the end of a run may wait for the thread."""
PATH = "/metrics"
LIVE, READY = "/livez", "/readyz"
"""Probes. The supervisor answers, not the training: a replay, a compilation, a long save and a hang
that it will end are no reason to kill the pod. Ready is a run that has made a step, for good."""


class MetricsServer(socketserver.ThreadingTCPServer):
    """Serves ``/metrics`` from its making to `close`.

    Not an `HTTPServer`: that one asks the name service for the host's name, and may wait for it.

    Args:
        address: to listen at.
        port: 0 for a free one.
        document: returns what a scrape gets; called in the threads of requests.
        is_ready: whether the run has made a step; likewise.

    Raises:
        OSError: the port is in use, or the address is not of this machine.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True  # not a port in use, on Linux: one that a run left a minute ago

    def __init__(
        self,
        address: str,
        port: int,
        document: Callable[[], str],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.document = document
        self.is_ready = is_ready
        super().__init__((address, port), _Scrape)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}{PATH}"

    def close(self) -> None:
        """Stops listening."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is none of the training's business."""


class _Scrape(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in (LIVE, READY):
            is_well = path == LIVE or self.server.is_ready()
            self._answer(200 if is_well else 503, "ok" if is_well else "no step yet", "text/plain")
        elif path == PATH:
            self._answer(200, self.server.document(), CONTENT_TYPE)
        else:
            self.send_error(404, f"only {PATH}, {LIVE} and {READY} are here")

    def _answer(self, code: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the training's."""


EVERY_S = 5.0
LAST_WRITE_S = 5.0
"""How long the end of a run waits for a disk that does not answer."""
MODE = 0o644
"""node_exporter runs as a user of its own; the file holds no more than the port tells."""


class MetricsFile(Reporter):
    """Keeps `path` a few seconds old at most.

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
        super().__init__("metrics file", every_s, LAST_WRITE_S)
        self._path = path
        self._document = document

    def _words(self, error: Exception) -> str:
        why = getattr(error, "strerror", None) or error
        return f"metrics_textfile: {self._path}: {why}"

    def _report(self) -> None:
        staged = self._path.with_name(f".{self._path.name}.{os.getpid()}.staged")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(staged, flags, MODE), "w", encoding="utf-8") as file:
                file.write(self._document())
            os.replace(staged, self._path)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
