"""What is done at the end of the process, whatever of it fails."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import MagicMock

import pytest

from supervisor.worker.process.exit_request import ExitRequest
from supervisor.worker.session.ending import Ending


def build_ending() -> tuple[Ending, dict[str, Any]]:
    parts: dict[str, Any] = {field.name: MagicMock() for field in dataclasses.fields(Ending)}
    parts["progress"].steps_done = 7
    parts["monitor"].updates_by_others = 0
    parts["progress"].probe.backward_calls = 7
    parts["saving"].__exit__.return_value = False
    parts["health"].in_trouble.return_value = False
    return Ending(**parts), parts


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize(
    "failing",
    [
        *("agreement.end", "experiment.end", "dispatcher.judge_waiting", "samples.tell"),
        *("probes.end", "compute.end", "model_scene.at_end", "checkpointer.close", "tape.close"),
        *("script_files.end", "journal.close"),
    ],
)
def test_what_fails_keeps_nothing_else_from_being_done(
    failing: str, error: type[BaseException]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error("of ours")

    ending, parts = build_ending()
    part, method = failing.split(".")
    getattr(parts[part], method).side_effect = fails

    ending.end(completed=True, parts=True)

    parts["parting"].write.assert_called_once_with()
    parts["checkpointer"].close.assert_called_once()
    parts["tape"].close.assert_called_once_with()
    parts["script_files"].end.assert_called_once_with()
    parts["journal"].close.assert_called_once_with()
    said = [call.args[0].message for call in parts["journal"].write.call_args_list]
    assert said == [f"at the end: {error.__name__}: of ours"]


def test_a_wish_to_leave_is_not_kept() -> None:
    ending, parts = build_ending()
    parts["dispatcher"].judge_waiting.side_effect = ExitRequest("interrupted", "SIGTERM")

    with pytest.raises(ExitRequest):
        ending.end(completed=True, parts=False)
