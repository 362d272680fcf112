"""The web server of the live page: standard library, one thread for each reader."""

from __future__ import annotations

import hmac
import ipaddress
import json
import math
import secrets
import threading
import time
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from supervisor.cli.overview.run_overview import find_runs
from supervisor.cli.serve.run_feed import LOOK_S, RunFeed
from supervisor.errors import RunDirectoryError, UsageError
from supervisor.masking import mask_all
from supervisor.records import plain
from supervisor.report.curves.curve_document import SHOWN, curves_css, curves_script
from supervisor.report.facts.figures import page_css
from supervisor.report.render import TEMPLATES
from supervisor.storage.run.rundir import RunDirectory

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 16
SIGN_OF_LIFE_S = 15.0
"""A comment in a stream without news: proxies close silent connections after a minute or less."""


class LiveServer(ThreadingHTTPServer):
    """Serves one run, or all runs of a folder.

    Every request needs the token. Nothing can be changed through it.

    Args:
        path: a run directory, or a folder that holds some.
        host, port: where to listen; port 0 takes a free one.
        token: None makes one up, which only a loopback address allows.

    Raises:
        UsageError: the address cannot be listened on, or needs a token.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, *, host: str, port: int, token: str | None = None) -> None:
        if token is None and not is_loopback(host):
            raise UsageError(
                f"--host {host}: others can reach it: give a --token as well (env:NAME reads it "
                "from the environment)"
            )
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self.path = path
        self.is_run = (path / "run.json").is_file()
        self._feeds: dict[str, RunFeed] = {}
        self._lock = threading.Lock()
        self.ending = threading.Event()
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{host}:{port}: {why}: give another --port; 0 takes a free one"
            ) from error

    @property
    def url(self) -> str:
        host = self.server_address[0]
        shown = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://{shown}:{self.server_port}/?{urlencode({'token': self.token})}"

    def feed(self, name: str) -> RunFeed | None:
        """Returns the feed of a run by its name; None if there is no such run here."""
        with self._lock:
            if self.is_run:
                name, path = "", self.path
            elif name in {run.parent.name for run in self.path.glob("*/run.json")}:
                path = self.path / name
            else:
                return None
            return self._feeds.setdefault(name, RunFeed(RunDirectory(path)))

    def runs(self) -> dict[str, Any]:
        """Returns what the list of runs shows."""
        found = []
        for run in find_runs(self.path):
            loss = run.last_loss
            is_number = loss is not None and math.isfinite(loss)
            shown = {**plain(run), "verdict": run.verdict, "last_loss": loss if is_number else None}
            found.append(shown)
        return mask_all({"title": self.path.resolve().name, "runs": found})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        given = asked.get("token") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            self._text(HTTPStatus.FORBIDDEN, "Give the token: use the address as it was printed.\n")
            return
        name = asked.get("run", "")
        match parts.path:
            case "/":
                self._page(is_list=not self.server.is_run and not name)
            case "/api/runs":
                self._json(self.server.runs)
            case "/api/runs/events":
                self._stream(self.server.runs)
            case "/api/state" | "/api/events" | "/api/curves" as path:
                feed = self.server.feed(name)
                if feed is None:
                    self._text(HTTPStatus.NOT_FOUND, "There is no such run.\n")
                elif path == "/api/curves":
                    self._curves(feed, asked)
                else:
                    (self._json if path == "/api/state" else self._stream)(feed.state)
            case _:
                self._text(HTTPStatus.NOT_FOUND, "There is nothing here.\n")

    def _curves(self, feed: RunFeed, asked: dict[str, str]) -> None:
        try:
            first, last = float(asked.get("from", "-inf")), float(asked.get("to", "inf"))
            names = json.loads(asked["names"]) if "names" in asked else SHOWN
            names = [str(name) for name in names]
        except (ValueError, TypeError, RecursionError):
            told = "from and to are numbers of steps, names is a JSON list of curves.\n"
            self._text(HTTPStatus.BAD_REQUEST, told)
            return
        self._json(lambda: feed.curves(names, first, last))

    def _page(self, *, is_list: bool) -> None:
        nonce = secrets.token_urlsafe(TOKEN_BYTES)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        body = live_page(nonce, is_list=is_list).encode()
        self._answer(
            HTTPStatus.OK, body, "text/html; charset=utf-8", {"Content-Security-Policy": policy}
        )

    def _json(self, build: Callable[[], dict[str, Any]]) -> None:
        try:
            body = json.dumps(build(), allow_nan=False).encode()
        except (OSError, RunDirectoryError) as error:
            self._text(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
            return
        self._answer(HTTPStatus.OK, body, "application/json", {})

    def _text(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, text.encode(), "text/plain; charset=utf-8", {})

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, build: Callable[[], dict[str, Any]]) -> None:
        """Sends the data whenever it has changed, until the reader goes."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        last, sent_s = "", time.monotonic()
        while not self.server.ending.is_set():
            try:
                text = json.dumps(build(), allow_nan=False)
            except (OSError, RunDirectoryError):
                text = last
            if text != last:
                self.wfile.write(f"data: {text}\n\n".encode())
                last, sent_s = text, time.monotonic()
            elif time.monotonic() - sent_s > SIGN_OF_LIFE_S:
                self.wfile.write(b": still here\n\n")
                sent_s = time.monotonic()
            self.wfile.flush()
            self.server.ending.wait(LOOK_S)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def handle(self) -> None:
        """Serves one connection; a reader who goes away is no error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the terminal free; addresses hold the token."""


STATIC = Path(__file__).with_name("static")


def live_page(nonce: str, *, is_list: bool) -> str:
    """Returns the page of one run, or of the list of runs; only scripts with `nonce` may run."""
    kind = "list" if is_list else "run"
    return _page().replace("{nonce}", nonce).replace("{kind}", kind)


@cache
def _page() -> str:
    styles = (page_css(), _read(TEMPLATES / "report.css"), curves_css(), _read(STATIC / "live.css"))
    page = _read(STATIC / "live.html")
    page = page.replace("/*styles*/", "\n".join(styles))
    return page.replace("/*scripts*/", f"{curves_script()}\n{_read(STATIC / 'live.js')}")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
