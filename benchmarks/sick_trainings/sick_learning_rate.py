"""Trainings whose updates are too long."""

from __future__ import annotations

from benchmarks.sick_trainings.scripts import script
from benchmarks.sick_trainings.sick_training import SickTraining


def _sgd(lr: float, more: str = "") -> str:
    return f"torch.optim.SGD(model.parameters(), lr={lr}{more})"


SICK_LEARNING_RATE = (
    SickTraining(
        name="conv, trainer: a milestone multiplies instead of dividing",
        cause="learning_rate",
        text=script("conv", "trainer", optimizer=_sgd(0.05), rate="1.0 if step < 55 else 2000.0"),
    ),
    SickTraining(
        name="transformer, AdamW: restart at a rate of 3",
        cause="learning_rate",
        text=script(
            "transformer",
            "endless",
            optimizer="torch.optim.AdamW(model.parameters(), lr=1e-3)",
            before="if step == 70: optimizer.param_groups[0]['lr'] = 3.0",
        ),
    ),
    SickTraining(
        name="recurrent: gradients explode through time, rate too high",
        cause="learning_rate",
        text=script(
            "recurrent",
            "plain",
            optimizer=_sgd(0.01),
            recurrence="self.inward(x) + self.across(h)",
            before="optimizer.param_groups[0]['lr'] *= 1.06",
        ),
    ),
    SickTraining(
        name="VAE, SGD: warm-up without end",
        cause="learning_rate",
        text=script(
            "vae",
            "plain",
            stops=True,
            optimizer=_sgd(1e-3),
            before="optimizer.param_groups[0]['lr'] = 1e-3 * 1.14 ** step",
        ),
    ),
    SickTraining(
        name="two heads, momentum 0.99: rate too high",
        cause="learning_rate",
        text=script("two heads", "plain", optimizer=_sgd(0.3, ", momentum=0.99")),
    ),
    SickTraining(
        name="two heads: a head is unfrozen with a rate of 500",
        cause="learning_rate",
        text=script(
            "two heads",
            "plain",
            optimizer="torch.optim.SGD([p for n, p in model.named_parameters() "
            "if 'amount' not in n], lr=0.01)",
            before="if step == 60: optimizer.add_param_group("
            "{'params': list(model.amount.parameters()), 'lr': 500.0})",
        ),
    ),
    SickTraining(
        name="transformer: rate three hundred times too high for one step (injected)",
        cause="learning_rate",
        text=script("transformer", "plain"),
        faults="[{kind: lr_spike, step: 66, factor: 1000}]",
    ),
)
