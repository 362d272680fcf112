"""Reports are sent around: secrets must not be in them."""

from __future__ import annotations

from supervisor.report.gathering import command_of, environment_of


def test_variables_of_the_environment_are_never_shown() -> None:
    run = {"script": "a.py", "env": {"AWS": "1"}, "versions": {"torch": "2.13", "deep": {"x": 1}}}

    assert environment_of(run) == {"script": "a.py", "torch": "2.13"}


def test_a_command_is_one_line_that_a_shell_understands() -> None:
    run = {"command": ["supervisor", "run", "my train.py", "--secret", "hunter22"]}

    assert command_of(run) == "supervisor run 'my train.py' --secret ***"
