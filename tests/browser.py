"""A real browser for tests: headless Chromium, driven by its WebDriver (W3C) without a library."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DRIVER = shutil.which("chromedriver")
STARTS_WITHIN_S = 60.0


class Browser:
    """One window."""

    def __init__(self, address: str, session: str) -> None:
        self._session = f"{address}/session/{session}"

    def open(self, url: str) -> None:
        self._post("url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs a function's body in the page and returns what it returns."""
        return self._post("execute/sync", script=script, args=list(arguments))

    def wait_for(self, condition: str, *arguments: Any, seconds: float = 60.0) -> Any:
        """Returns the value of a JavaScript expression as soon as it is true.

        Raises:
            TimeoutError: it never is.
        """
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            found = self.run(f"return {condition}", *arguments)
            if found:
                return found
            time.sleep(0.1)
        text = self.run("return document.body.innerText")
        raise TimeoutError(f"{condition} is not true; the page says: {text}")

    def resize(self, width: int, height: int) -> None:
        self._post("window/rect", width=width, height=height)

    def press(self, key: str) -> None:
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._post("actions", actions=[{"type": "key", "id": "keyboard", "actions": keys}])

    def errors(self) -> list[str]:
        """Returns what the console complained about."""
        entries = self._post("se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(_ask("GET", f"{self._session}/screenshot")))

    def _post(self, command: str, **content: Any) -> Any:
        return _ask("POST", f"{self._session}/{command}", content)


@contextlib.contextmanager
def browser(profile: Path, *, dark: bool = False) -> Iterator[Browser]:
    """Yields a browser with an empty profile; skips the test if it does not start here."""
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        f"--user-data-dir={profile}",
    ]
    if dark:
        options.append("--blink-settings=preferredColorScheme=0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    driver = subprocess.Popen(
        [str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": options},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            _wait_until_ready(address)
            made = _ask("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
        except OSError as error:
            pytest.skip(f"Chromium does not start on this machine: {error}")
        yield Browser(address, made["sessionId"])
        _ask("DELETE", f"{address}/session/{made['sessionId']}")
    finally:
        driver.kill()
        driver.wait()


def _wait_until_ready(address: str) -> None:
    """Returns when the driver answers.

    Raises:
        OSError: it does not.
    """
    until_s = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            _ask("GET", f"{address}/status")
            return
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)


def _ask(method: str, url: str, content: dict[str, Any] | None = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=STARTS_WITHIN_S) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        raise OSError(error.read().decode()[:500]) from error
