"""Trainings whose own code brings a value to where an operation is not defined, or raises."""

from __future__ import annotations

from benchmarks.sick_trainings.scripts import script
from benchmarks.sick_trainings.sick_training import SickTraining

SICK_CODE = (
    SickTraining(
        name="transformer: label smoothing annealed to log of zero",
        cause="model_code",
        text=script(
            "transformer",
            "plain",
            loss="F.cross_entropy(model(x).flatten(0, 1), y.flatten()) "
            "- 0.001 * torch.log(torch.tensor(max(0.0, 1.0 - step / 55)))",
        ),
        modules=("(loss)",),
        operations=("log",),
    ),
    SickTraining(
        name="conv: images standardised without eps, one is black",
        cause="model_code",
        text=script(
            "conv",
            "plain",
            data="X[8 * 60 + 6] = 0",
            first="x = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)",
        ),
        sample=6,
        modules=("(model)",),
        operations=("div",),
    ),
    SickTraining(
        name="transformer: a sequence that is padding entirely is masked entirely",
        cause="model_code",
        text=script(
            "transformer",
            "plain",
            data="X[:, -2:] = 0; X[8 * 52 + 3] = 0",
            mask="scores = scores.masked_fill(model.padded[:, None, :], float('-inf'))",
        ),
        sample=3,
        modules=("blocks.0.attention",),
        operations=("softmax",),
    ),
    SickTraining(
        name="recurrent: a state carried from batch to batch explodes",
        cause="model_code",
        text=script(
            "recurrent",
            "plain",
            optimizer="torch.optim.SGD(model.parameters(), lr=1e-3)",
            recurrence="torch.tanh(self.inward(x)) + h * 1.15",
            state="self.h",
            inside="self.h = h.detach(); h = h / (1 + h.abs())",
        ),
        modules=("cell",),
        operations=("mul", "add"),
    ),
    SickTraining(
        name="VAE: derivative of a norm at zero",
        cause="model_code",
        text=script(
            "vae",
            "plain",
            data="X[8 * 57 + 5] = 0",
            loss="((seen - x) * (x != 0).any(1, keepdim=True)).norm(dim=1).pow(2).mean() "
            "+ torch.sqrt(((seen - x) * (x != 0)).pow(2).sum(1)).mean()",
        ),
        sample=5,
        modules=("(loss)",),
        operations=("sqrt",),
    ),
    SickTraining(
        name="two heads: spread over a last batch of one",
        cause="model_code",
        text=script(
            "two heads",
            "plain",
            build="self.eps = 1e-5",
            inside="h = (h - h.mean(0)) / (h.std(0) + self.eps)",
        ).replace("960", "481"),
        modules=("(model)",),
        operations=("std", "var"),
    ),
    SickTraining(
        name="conv: batch normalisation of a last batch of one",
        cause="model_code",
        text=script(
            "conv",
            "plain",
            inside="h = F.batch_norm(h.mean((2, 3)), None, None, training=True)"
            "[:, :, None, None] + h",
        ).replace("960", "441"),
    ),
    SickTraining(
        name="recurrent: arc cosine of a cosine above one",
        cause="model_code",
        text=script(
            "recurrent",
            "plain",
            data="X[8 * 63 + 2] = 0; Y[8 * 63 + 2] = 0",
            loss="F.mse_loss(model(x), y) + 0.01 * torch.acos(0.5 + x.abs().sum((1, 2)).lt(1e-9)"
            ".float() * (0.5 + 1e-6)).mean()",
        ),
        modules=("(loss)",),
        operations=("acos",),
    ),
    SickTraining(
        name="two heads: mean over the positives of a batch without any",
        cause="model_code",
        text=script(
            "two heads",
            "plain",
            stops=True,
            data="self.label[self.label == 2] = 1; self.label[::4] = 2; "
            "self.label[8 * 61 : 8 * 62] = 0",
            amounts='((out["amount"] - batch["value"]) ** 2 * (batch["label"] == 2)).sum() '
            '/ (batch["label"] == 2).sum()',
        ),
        modules=("(loss)",),
        operations=("div",),
    ),
    SickTraining(
        name="conv, trainer: KeyError at step 70",
        cause="model_code",
        text=script("conv", "trainer", before="{at: at for at in range(70)}[step]"),
    ),
    SickTraining(
        name="VAE, accumulating: exponent grows with the step",
        cause="model_code",
        text=script(
            "vae",
            "accumulating",
            inside="mu = mu + 0 * torch.exp(torch.tensor(1.5 * (self.calls // 2)))",
        ),
        modules=("(model)",),
        operations=("exp",),
    ),
    SickTraining(
        name="recurrent, no loader: division by a counter that reaches zero",
        cause="model_code",
        text=script("recurrent", "drawn", inside="h = h / torch.tensor(64.0 - self.calls)"),
        modules=("(model)",),
        operations=("div",),
    ),
)
