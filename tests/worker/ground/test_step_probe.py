"""What is gathered of a step becomes its record, and nothing of the next."""

from __future__ import annotations

import torch

from supervisor.worker.ground.step_probe import StepProbe


def test_a_record_that_waits_does_not_get_what_the_next_step_observes() -> None:
    probe = StepProbe()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    waiting = probe.record(0, 1.0, optimizer)
    probe.observed.update({"kl": 0.5})
    following = probe.record(1, 2.0, optimizer)

    assert waiting.observed == {}
    assert following.observed == {"kl": 0.5}
