"""Reports are sent around: secrets must not be in them."""

from __future__ import annotations

import pytest

from supervisor.report.environment import command_of, environment_of, hide_secrets


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("train.py --api-key abcd1234 --lr 3e-4", "train.py --api-key *** --lr 3e-4"),
        ("HF_TOKEN=abcdefgh python x.py", "HF_TOKEN=*** python x.py"),
        ('password: "a b c"', "password: ***"),
        ("git clone https://me:pass@host/x", "git clone https://me:***@host/x"),
        ("using hf_abcdefghijklmnop", "using ***"),
        ("tokens 8×128, loss 2.3", "tokens 8×128, loss 2.3"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, hidden: str) -> None:
    assert hide_secrets(text) == hidden


def test_variables_of_the_environment_are_never_shown() -> None:
    run = {"script": "a.py", "env": {"AWS": "1"}, "versions": {"torch": "2.13", "deep": {"x": 1}}}

    assert environment_of(run) == {"script": "a.py", "torch": "2.13"}


def test_a_command_is_one_line_that_a_shell_understands() -> None:
    run = {"command": ["supervisor", "run", "my train.py", "--secret", "hunter22"]}

    assert command_of(run) == "supervisor run 'my train.py' --secret ***"
