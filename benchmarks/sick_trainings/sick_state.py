"""Trainings whose optimizer state or weights were damaged."""

from __future__ import annotations

from benchmarks.sick_trainings.scripts import script
from benchmarks.sick_trainings.sick_training import SickTraining

_SECOND = "if step == 60: [s['{name}'].mul_({factor}) for s in optimizer.state.values()]"


def _adam(lr: float) -> str:
    return f"torch.optim.Adam(model.parameters(), lr={lr})"


SICK_STATE = (
    SickTraining(
        name="conv, Adam: second moment damaged at step 48 (injected)",
        cause="optimizer_state",
        text=script("conv", "plain", optimizer=_adam(0.03)),
        faults="[{kind: second_moment, step: 48, factor: 1.0e-12}]",
    ),
    SickTraining(
        name="transformer, AdamW, trainer: second moment damaged",
        cause="optimizer_state",
        text=script(
            "transformer",
            "trainer",
            optimizer="torch.optim.AdamW(model.parameters(), lr=3e-3)",
            before=_SECOND.format(name="exp_avg_sq", factor="1e-10"),
        ),
    ),
    SickTraining(
        name="recurrent, SGD: momentum a million times too large",
        cause="optimizer_state",
        text=script(
            "recurrent",
            "plain",
            optimizer="torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)",
            before=_SECOND.format(name="momentum_buffer", factor="1e6"),
        ),
    ),
    SickTraining(
        name="VAE, Adam: first moment from elsewhere",
        cause="optimizer_state",
        text=script("vae", "plain", before=_SECOND.format(name="exp_avg", factor="1e5")),
    ),
    SickTraining(
        name="two heads, NAdam: first moment turned around and enlarged",
        cause="optimizer_state",
        text=script(
            "two heads",
            "plain",
            optimizer="torch.optim.NAdam(model.parameters(), lr=3e-3)",
            before=_SECOND.format(name="exp_avg", factor="-1e5"),
        ),
    ),
    SickTraining(
        name="conv: a weight overwritten at step 45 (injected)",
        cause="weights",
        text=script("conv", "plain"),
        faults="[{kind: weight, step: 45}]",
    ),
    SickTraining(
        name="transformer, clipped: a weight overwritten (injected)",
        cause="weights",
        text=script("transformer", "endless"),
        faults="[{kind: weight, step: 70}]",
    ),
    SickTraining(
        name="recurrent: weights of another file loaded at step 60",
        cause="weights",
        text=script(
            "recurrent",
            "plain",
            before="if step == 60: [p.data.mul_(1e4) for p in model.head.parameters()]",
        ),
    ),
    SickTraining(
        name="two heads: NaN written into an embedding",
        cause="weights",
        text=script(
            "two heads",
            "plain",
            before="if step == 60: model.users.weight.data[:] = float('nan')",
        ),
    ),
)
