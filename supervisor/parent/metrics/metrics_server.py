"""Answers Prometheus on a thread of its own."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from supervisor.parent.metrics.exposition import CONTENT_TYPE

TIMEOUT_S = 5.0
"""For a client that connects and says nothing."""
POLL_S = 0.2
"""So long the end of a run may wait for the thread."""
PATH = "/metrics"


class MetricsServer(socketserver.ThreadingTCPServer):
    """Serves ``/metrics`` from its making to `close`.

    Not an `HTTPServer`: that one asks the name service for the host's name, and may wait for it.

    Args:
        address: to listen at.
        port: 0 for a free one.
        document: returns what a scrape gets; called in the threads of requests.

    Raises:
        OSError: the port is in use, or the address is not of this machine.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True  # not a port in use, on Linux: one that a run left a minute ago

    def __init__(self, address: str, port: int, document: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.document = document
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
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, f"only {PATH} is here")
            return
        body = self.server.document().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the training's."""
