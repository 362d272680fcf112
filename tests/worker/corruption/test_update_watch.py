"""What is kept of the updates since the last look."""

from __future__ import annotations

import gc

import torch

from supervisor.training_state.registry import Registry
from supervisor.worker.corruption.update_watch import UpdateWatch


def test_updates_of_the_same_settings_in_a_row_share_them() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    registry = Registry()
    registry.add_optimizer(optimizer)
    watch = UpdateWatch(registry)
    watch.looked()
    first, second = 0.1, 0.2

    for rate in (first, first, second, first):
        optimizer.param_groups[0]["lr"] = rate
        watch.begin(optimizer, 1.0, float("inf"))
        watch.end(optimizer)

    (watched,) = watch.watched()
    updates = watched.updates(0)
    assert [update.number("lr") for update in updates] == [0.1, 0.1, 0.2, 0.1]
    assert updates[0].settings is updates[1].settings
    assert len({id(update.settings) for update in updates}) == 3


def test_nothing_is_kept_of_a_dropped_optimizer_for_the_next_one_at_its_address() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    registry = Registry()
    watch = UpdateWatch(registry)
    dropped = torch.optim.RMSprop([weight], lr=0.1)
    registry.add_optimizer(dropped)
    watch.looked()
    assert len(watch.watched()) == 1

    del dropped
    gc.collect()

    assert watch.watched() == []
    optimizer = torch.optim.Adam([weight], lr=0.1)  # at its address there is no `alpha`
    watch.begin(optimizer, 1.0, float("inf"))
