"""Who waits at a terminal is told for what."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from supervisor.cli.options.patience import told_if_long


class Terminal(io.StringIO):
    """Sets `told` at the first line."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.told = threading.Event()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def flush(self) -> None:
        self.told.set()


def test_what_takes_long_is_told_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    with told_if_long("writing the report", after_s=0.0, every_s=3600.0):
        assert terminal.told.wait(60.0)

    assert terminal.getvalue() == "supervisor: writing the report, for 0 s\n"


def test_what_is_soon_over_and_what_nobody_reads_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, file = Terminal(), Terminal(is_terminal=False)
    for stderr, after_s in ((terminal, 3600.0), (file, 0.0)):
        monkeypatch.setattr(sys, "stderr", stderr)
        with told_if_long("writing the report", after_s=after_s):
            pass

    assert terminal.getvalue() == file.getvalue() == ""
