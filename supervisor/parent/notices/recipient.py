"""The ways on which a notice leaves the machine."""

from __future__ import annotations

import html
import json
import os
import signal
import smtplib
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

from supervisor.errors import ConfigError
from supervisor.parent.notices.notice import Notice, points_to_secret, read_secret
from supervisor.settings import EmailSettings, NotifySettings

TIMEOUT_S = 10.0
"""For a connection, and for each answer."""
COMMAND_S = 60.0


@dataclass(frozen=True, slots=True)
class Recipient:
    """One place that is told.

    Attributes:
        name: of its setting.
        send: raises OSError, or another exception of its library, if the notice did not arrive.
        secret: is hidden in what an error says.
    """

    name: str
    send: Callable[[Notice], None]
    secret: str = ""


def make_recipients(settings: NotifySettings) -> list[Recipient]:
    """Returns the recipients of a config.

    Raises:
        ConfigError: an address or a password is not where the config says, or is no address.
    """
    made = []
    for name, body in BODIES.items():
        text = getattr(settings, name)
        if text:
            url = _address(f"notify.{name}", text, is_secret=name != "webhook")
            made.append(Recipient(f"notify.{name}", _post(url, body), secret=url))
    if settings.email.recipients:
        made.append(_email(settings.email))
    if settings.command:
        made.append(Recipient("notify.command", _command(settings.command)))
    return made


def _address(where: str, text: str, *, is_secret: bool) -> str:
    if is_secret and not points_to_secret(text):
        raise ConfigError(
            f"{where}: the address is a secret, and the config is written down: give env:NAME or "
            "file:PATH"
        )
    url = read_secret(where, text)
    if not url.startswith(("https://", "http://")) or len(url.split()) != 1:
        raise ConfigError(f"{where}: not an address that begins with https:// or http://")
    return url


def _post(url: str, body: Callable[[Notice], dict[str, Any]]) -> Callable[[Notice], None]:
    def send(notice: Notice) -> None:
        request = urllib.request.Request(
            url,
            data=json.dumps(body(notice)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "training-supervisor"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass  # a status from 400 on raises

    return send


def _slack(notice: Notice) -> dict[str, Any]:
    return {"text": html.escape(notice.as_line(), quote=False)}


def _discord(notice: Notice) -> dict[str, Any]:
    return {"content": notice.as_line()[:2000], "allowed_mentions": {"parse": []}}


def _teams(notice: Notice) -> dict[str, Any]:
    """A message for a workflow's webhook, with one adaptive card."""
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "TextBlock", "text": notice.as_line(), "wrap": True}],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


BODIES: Mapping[str, Callable[[Notice], dict[str, Any]]] = {
    "webhook": Notice.as_json,
    "slack": _slack,
    "discord": _discord,
    "teams": _teams,
}
"""Setting → what is posted to its address."""


def _email(settings: EmailSettings) -> Recipient:
    where = "notify.email"
    if not settings.host:
        raise ConfigError(f"{where}.host: missing: give the SMTP server")
    if settings.password and not points_to_secret(settings.password):
        raise ConfigError(f"{where}.password: is written down here: give env:NAME or file:PATH")
    password = read_secret(f"{where}.password", settings.password)
    connect = smtplib.SMTP_SSL if settings.security == "tls" else smtplib.SMTP

    def send(notice: Notice) -> None:
        message = EmailMessage()
        message["Subject"] = " ".join(f"[training] {notice.as_line()}".split())[:200]
        message["From"] = settings.sender or settings.recipients[0]
        message["To"] = ", ".join(settings.recipients)
        message.set_content(json.dumps(notice.as_json(), indent=2))
        with connect(settings.host, settings.port, timeout=TIMEOUT_S) as server:
            if settings.security == "starttls":
                server.starttls()
            if settings.user:
                server.login(settings.user, password)
            server.send_message(message)

    return Recipient(where, send, secret=password)


def _command(line: str) -> Callable[[Notice], None]:
    def send(notice: Notice) -> None:
        told = notice.as_json()
        process = subprocess.Popen(
            line,
            shell=True,  # a person's own line, with pipes
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the training
            env={**os.environ, "SUPERVISOR_EVENT": told["event"], "SUPERVISOR_TEXT": told["text"]},
        )
        try:
            process.communicate(json.dumps(told).encode() + b"\n", timeout=COMMAND_S)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise OSError(f"did not end within {COMMAND_S:g} s") from error
        if process.returncode:
            raise OSError(f"ended with {process.returncode}")

    return send
