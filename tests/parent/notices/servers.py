"""Real servers on this machine, for notices."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hook(ThreadingHTTPServer):
    """Keeps what is posted; answers with `statuses` in turn, then with 200."""

    daemon_threads = True

    def __init__(self, *statuses: int, delay_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.statuses = list(statuses)
        self.delay_s = delay_s
        self.got: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Post(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.delay_s)
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status == 200:
            self.server.got.append(json.loads(body))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Smtp(socketserver.ThreadingTCPServer):
    """Takes mails in plain SMTP; `refuses` answers every recipient with 550."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.refuses = refuses
        self.mails: list[str] = []


class _Session(socketserver.StreamRequestHandler):
    server: Smtp

    def handle(self) -> None:
        self._say("220 here")
        for raw in self.rfile:
            word = raw.decode().split()[0].upper()
            if word == "RCPT" and self.server.refuses:
                self._say("550 nobody of that name")
            elif word == "DATA":
                self._say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.mails.append(b"".join(lines).decode())
                self._say("250 taken")
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def running(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
