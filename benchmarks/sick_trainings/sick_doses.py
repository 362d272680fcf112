"""Trainings in which one number is wrong by orders of magnitude: a rate, a scale, a decay."""

from __future__ import annotations

from benchmarks.sick_trainings.scripts import script
from benchmarks.sick_trainings.sick_training import SickTraining

_DEEP = "self.deep = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))"

SICK_DOSES = (
    SickTraining(
        name="two heads, SGD: rate a hundred thousand times too high from the start",
        cause="learning_rate",
        text=script(
            "two heads",
            "plain",
            optimizer="torch.optim.SGD(model.parameters(), lr=1e3)",
            build=_DEEP,
            inside="h = h + self.deep(h)",
        ),
    ),
    SickTraining(
        name="recurrent, momentum: restart at a million times the rate",
        cause="learning_rate",
        text=script(
            "recurrent",
            "trainer",
            optimizer="torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)",
            rate="1.0 if step < 62 else 1e6",
            recurrence="F.relu(self.inward(x) + self.across(h))",
        ),
    ),
    SickTraining(
        name="VAE, Adam: rate of 100 from the start",
        cause="learning_rate",
        text=script("vae", "drawn", optimizer="torch.optim.Adam(model.parameters(), lr=100.0)"),
    ),
    SickTraining(
        name="conv: weights begin so large that the loss is not finite",
        cause="weights",
        text=script(
            "conv",
            "plain",
            build="[nn.init.normal_(m.weight, std=1e25) for m in (self.conv2, self.head)]",
        ),
    ),
    SickTraining(
        name="recurrent, SGD: recurrence begins a hundred times too large",
        cause="weights",
        text=script(
            "recurrent",
            "plain",
            optimizer="torch.optim.SGD(model.parameters(), lr=0.01)",
            recurrence="F.relu(self.inward(x) + self.across(h))",
            cell="self.across.weight.data.mul_(100.0)",
        ),
    ),
    SickTraining(
        name="transformer, SGD: weight decay of 3,000",
        cause="learning_rate",
        text=script(
            "transformer",
            "plain",
            optimizer="torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=3000.0)",
        ),
    ),
    SickTraining(
        name="conv, AdamW: weight decay of 1e6",
        cause="learning_rate",
        text=script(
            "conv",
            "endless",
            optimizer="torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e6)",
        ),
    ),
    SickTraining(
        name="recurrent: labels a billion times too large from one sample on",
        cause="data",
        text=script(
            "recurrent",
            "plain",
            optimizer="torch.optim.SGD(model.parameters(), lr=0.02)",
            data="Y[8 * 58 :] *= 1e9",
        ),
    ),
    SickTraining(
        name="two heads, SGD: a loss weighted a million times too much",
        cause="learning_rate",
        text=script(
            "two heads",
            "accumulating",
            optimizer="torch.optim.SGD(model.parameters(), lr=0.01)",
            amounts='1e6 * F.mse_loss(out["amount"], batch["value"])',
        ),
    ),
    SickTraining(
        name="FP16: a static loss scale of 2 ** 30",
        cause="precision",
        text=script("transformer", "plain", context='torch.autocast("cpu", torch.float16)').replace(
            "optimizer.zero_grad(); loss.backward(); optimizer.step()",
            "optimizer.zero_grad(); (loss * 2.0 ** 30).backward()\n"
            "    for p in model.parameters(): p.grad /= 2.0 ** 30\n"
            "    optimizer.step()",
        ),
    ),
)
