"""Each way to tell against a real server, or a real process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.errors import ConfigError
from supervisor.parent.notices.notice import Notice
from supervisor.parent.notices.recipient import make_recipients
from supervisor.settings import EmailSettings, NotifySettings
from tests.parent.notices.servers import Hook, Smtp, running

NOTICE = Notice(
    event="treated",
    run=Path("runs/a"),
    text="skip_update at step 7: <loss> nan, api_key=geheim1234",
    attempt=2,
    step=7,
    details={"name": "skip_update"},
    left_out={"treated": 3},
)


def test_a_webhook_gets_the_document_of_the_docs() -> None:
    with running(Hook()) as hook:
        [recipient] = make_recipients(NotifySettings(webhook=hook.url))
        recipient.send(NOTICE)

    [got] = hook.got
    assert {key: got[key] for key in ("schema", "event", "run", "step", "attempt")} == {
        "schema": 1, "event": "treated", "run": "a", "step": 7, "attempt": 2,
    }  # fmt: skip
    assert got["left_out"] == {"treated": 3}
    assert "geheim" not in json.dumps(got)


@pytest.mark.parametrize("name", ["slack", "discord", "teams"])
def test_a_chat_gets_one_line_from_an_address_that_is_a_secret(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Hook()) as hook:
        monkeypatch.setenv("CHAT", hook.url)
        [recipient] = make_recipients(NotifySettings(**{name: "env:CHAT"}))
        recipient.send(NOTICE)

    [got] = hook.got
    assert "a: skip_update at step 7" in json.dumps(got)
    assert "(3 more treated before)" in json.dumps(got)
    assert ("&lt;loss&gt;" in json.dumps(got)) == (name == "slack")
    with pytest.raises(ConfigError, match=rf"^notify.{name}: the address is a secret"):
        make_recipients(NotifySettings(**{name: hook.url}))


def test_a_mail_is_taken_and_a_refused_one_is_an_error() -> None:
    with running(Smtp()) as server:
        to = EmailSettings(["me@x.org"], host="127.0.0.1", port=0, security="none")
        to.port = server.server_address[1]
        [recipient] = make_recipients(NotifySettings(email=to))
        recipient.send(NOTICE)
        server.refuses = True
        with pytest.raises(OSError, match="nobody of that name"):
            recipient.send(NOTICE)

    [mail] = server.mails
    assert "Subject: [training] a: skip_update at step 7" in mail
    assert '"event": "treated"' in mail


def test_a_command_gets_the_document_and_its_failure_is_an_error(tmp_path: Path) -> None:
    line = f'cat >> {tmp_path}/got.jsonl; test "$SUPERVISOR_EVENT" = treated'
    [recipient] = make_recipients(NotifySettings(command=line))

    recipient.send(NOTICE)
    recipient.send(NOTICE)

    lines = (tmp_path / "got.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [7, 7]
    [failing] = make_recipients(NotifySettings(command="exit 3"))
    with pytest.raises(OSError, match="ended with 3"):
        failing.send(NOTICE)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (NotifySettings(webhook="env:NOT_THERE"), "NOT_THERE is not set"),
        (NotifySettings(webhook="file:/not/there"), "/not/there: No such file"),
        (NotifySettings(webhook="example.org"), "not an address that begins with"),
        (NotifySettings(email=EmailSettings(["a@b.c"])), "notify.email.host: missing"),
        (
            NotifySettings(email=EmailSettings(["a@b.c"], host="x", password="geheim")),
            "notify.email.password: is written down here",
        ),
    ],
)
def test_what_is_missing_is_said(settings: NotifySettings, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        make_recipients(settings)
    assert "geheim" not in str(error.value)
