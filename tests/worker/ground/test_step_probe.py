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


def test_time_passes_without_a_look_at_the_process_for_a_second_at_most() -> None:
    probe = StepProbe()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    first = probe.pass_time(10.0)
    probe.record(0, 10.0, optimizer)

    assert first is None
    assert probe.pass_time(10.5) == 0.5
    assert probe.pass_time(10.25) is None  # the clock was set back
    assert probe.pass_time(11.5) is None
    assert probe.record(1, 11.5, optimizer).step_time_s == 1.0
