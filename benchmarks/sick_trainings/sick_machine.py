"""Trainings that the machine broke: the same again does not crash."""

from __future__ import annotations

from benchmarks.sick_trainings.scripts import FP16, script
from benchmarks.sick_trainings.sick_training import SickTraining

SICK_MACHINE = (
    SickTraining(
        name="conv: a gradient spoiled by the machine",
        cause="transient",
        text=script("conv", "plain"),
        faults="[{kind: nan_gradient, step: 52, transient: true}]",
    ),
    SickTraining(
        name="transformer, trainer: a weight spoiled by the machine",
        cause="transient",
        text=script("transformer", "trainer"),
        faults="[{kind: weight, step: 70, transient: true}]",
    ),
    SickTraining(
        name="recurrent, no loader: a gradient a million times too large",
        cause="transient",
        text=script("recurrent", "drawn"),
        faults="[{kind: gradient_spike, step: 44, factor: 1.0e+12, transient: true}]",
    ),
    SickTraining(
        name="VAE, FP16: input spoiled on its way to the device",
        cause="transient",
        text=script("vae", "plain", context=FP16),
        faults="[{kind: nan_data, step: 61, transient: true}]",
    ),
    SickTraining(
        name="two heads, accumulating: second moment spoiled by the machine",
        cause="transient",
        text=script(
            "two heads",
            "accumulating",
            optimizer="torch.optim.Adam(model.parameters(), lr=0.03)",
        ),
        faults="[{kind: second_moment, step: 66, factor: 1.0e-12, transient: true}]",
    ),
    SickTraining(
        name="conv, trainer: segmentation fault",
        cause="transient",
        text=script("conv", "trainer"),
        faults="[{kind: sigsegv, step: 57, count: 9}]",
    ),
)
