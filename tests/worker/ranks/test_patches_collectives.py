"""What counts messages and objects of ranks never keeps them from being exchanged."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

from supervisor.storage.journal.journal import SilentJournal
from supervisor.worker.core.breakers import LIMIT, Breaker, Breakers
from supervisor.worker.core.part import Sides
from supervisor.worker.ranks.exchanges import Exchanges
from supervisor.worker.ranks.patches_collectives import watch_collectives, watch_messages

PATCHED = (
    *("isend", "irecv", "recv", "monitored_barrier", "batch_isend_irecv"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("recv_object_list", "send_object_list"),
)


class Broken(Exchanges):
    """Fails at everything that it is asked."""

    def sent(self, group: Any, peer: int) -> None:
        raise RuntimeError("ours")

    def received(self, group: Any, peer: int) -> None:
        raise RuntimeError("ours")

    def received_from_any(self, group: Any, work: Any) -> None:
        raise RuntimeError("ours")

    def aside(self, group: Any, *, counts: int = 0) -> Any:
        raise RuntimeError("ours")

    def tells(self, group: Any) -> Any:
        raise RuntimeError("ours")


class BrokenWithin(Broken):
    """Fails behind each call."""

    def aside(self, group: Any, *, counts: int = 0) -> Any:
        return Leaving()

    def tells(self, group: Any) -> Any:
        return Leaving()


class Leaving:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("ours")


class Interception:
    def is_ours(self) -> bool:
        return True


class Hooks:
    """Those of a live run, without a replay log."""

    def objects(self, place: Any, call: Any, *, all_have: bool) -> Any:
        return call()

    def read(self, kind: int, call: Any) -> Any:
        return call()


class Session:
    call_state = Interception()


@pytest.fixture
def part() -> Breaker:
    breakers = Breakers(SilentJournal(), lambda: None, lambda: None)
    return breakers("exchanges")


@pytest.fixture(params=[Broken, BrokenWithin])
def patched(request: pytest.FixtureRequest, part: Breaker) -> Iterator[None]:
    """This process is rank 0 of two, and our part of each exchange raises."""
    with pytest.MonkeyPatch.context() as kept:
        for name in PATCHED:
            for module in (dist, distributed_c10d):
                kept.setattr(module, name, getattr(module, name))
        watch_messages(request.param(), part)
        watch_collectives(Session(), Sides(Hooks()), None, request.param(), part)  # type: ignore[arg-type]
        dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
        yield
        dist.destroy_process_group()


@pytest.mark.usefixtures("patched")
def test_an_error_of_ours_at_a_message_or_an_object_is_not_the_scripts(part: Breaker) -> None:
    x, told = torch.ones(2), [1, 2]
    both = [dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, x, 1)]
    calls = [
        functools.partial(dist.isend, x, 1),
        functools.partial(dist.irecv, x, 1),
        functools.partial(dist.irecv, x),
        functools.partial(dist.send, x, 1),
        functools.partial(dist.recv, x, 1),
        functools.partial(dist.batch_isend_irecv, both),
        functools.partial(dist.broadcast_object_list, told, 0),
    ]

    for call in calls:
        part.failures, part.is_on = 0, True
        call()
        assert part.failures > 0, call

    part.failures, part.is_on = LIMIT, False
    for call in calls:  # switched off, nothing of ours is asked
        call()
    assert part.failures == LIMIT


@pytest.mark.usefixtures("patched")
def test_an_error_of_torch_is_the_scripts() -> None:
    with pytest.raises(ValueError, match="specify both"):
        dist.isend(torch.ones(2), 1, group_dst=1)
    with pytest.raises(TypeError):
        dist.all_gather_object(nothing_such=1)  # type: ignore[call-arg]
