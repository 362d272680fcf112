"""Connections wait for ranks that come, and for no others."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from supervisor.storage.run.healing_memory import HealingMailbox, HealingMemory
from supervisor.worker.healing import links as module
from supervisor.worker.healing.links import Broken, Links

PEER = "(?i)connection closed by"
"""By this a reader of exit notes knows that another rank is to blame."""


class Group:
    """Of two ranks, of which this is the first."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        options = SimpleNamespace(_timeout=datetime.timedelta(seconds=timeout_s))
        self._backend = SimpleNamespace(options=options)

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def _get_backend(self, device: torch.device) -> Any:
        return self._backend


@pytest.fixture
def mailbox() -> Iterator[HealingMailbox]:
    memory = HealingMemory(2)
    yield memory.mailbox
    memory.close()


def links_of(mailbox: HealingMailbox) -> Links:
    links = Links(mailbox, 0, 2)
    links._made_store = torch.distributed.HashStore()
    return links


def killed(mailbox: HealingMailbox) -> None:
    mailbox.generation += 1


@pytest.mark.parametrize("happens", [killed, HealingMailbox.decline])
def test_a_group_is_not_connected_with_a_rank_that_was_killed(
    mailbox: HealingMailbox,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[HealingMailbox], None],
) -> None:
    """It had not come to this group: gloo would wait for it until the group's own timeout."""
    monkeypatch.setattr(module.time, "sleep", lambda seconds: happens(mailbox))
    group: Any = Group()

    with pytest.raises(RuntimeError, match=PEER):
        links_of(mailbox).of(group, "late")


def test_a_rank_that_never_comes_to_a_group_ends_its_timeout(mailbox: HealingMailbox) -> None:
    group: Any = Group(timeout_s=0.0)

    with pytest.raises(RuntimeError, match="wait timeout"):
        links_of(mailbox).of(group, "late")


def test_nobody_is_awaited_where_all_are_ended(
    mailbox: HealingMailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(mailbox)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: mailbox.decline())

    with pytest.raises(Broken, match=PEER):
        links_of(mailbox).wait_together({})
