"""Trainings that only a small number format breaks."""

from __future__ import annotations

from benchmarks.sick_trainings.scripts import BF16, FP16, script
from benchmarks.sick_trainings.sick_training import SickTraining

_SGD = "torch.optim.SGD(model.parameters(), lr=1e-4)"

SICK_PRECISION = (
    SickTraining(
        name="conv, FP16: the second convolution overflows",
        cause="precision",
        text=script(
            "conv",
            "plain",
            context=FP16,
            build="nn.init.constant_(self.conv2.weight, 0.5); self.after = nn.LayerNorm(72)",
            inside="h = h * 1.15 ** self.calls; return self.head("
            "self.after(F.relu(self.conv2(h)).flatten(1)))",
        ),
        modules=("conv2",),
        operations=("convolution", "conv2d", "mkldnn_convolution"),
    ),
    SickTraining(
        name="transformer, FP16: scores of growing queries overflow",
        cause="precision",
        text=script(
            "transformer",
            "plain",
            context=FP16,
            inside="q, k = q * 1.08 ** self.calls, k * 1.08 ** self.calls",
        ),
        modules=("blocks.0.attention", "blocks.1.attention"),
        operations=("matmul", "bmm", "mm"),
    ),
    SickTraining(
        name="recurrent, FP16: the recurrence explodes",
        cause="precision",
        text=script(
            "recurrent",
            "plain",
            context=FP16,
            optimizer=_SGD,
            cell="self.rate = 0",
            recurrence="self.inward(x) + h.half() * 2.0",
            inside="h = h * 1.07 ** self.calls; h = h / (1 + h.abs())",
        ),
        modules=("(model)", "cell"),
        operations=("mul", "add"),
    ),
    SickTraining(
        name="VAE, FP16: exp of a growing log variance overflows",
        cause="precision",
        text=script(
            "vae",
            "plain",
            context=FP16,
            optimizer=_SGD,
            inside="logvar = logvar + self.calls * 0.19",
            spread="torch.exp(logvar).log().tanh()",
            loss="F.mse_loss(seen, x)",
        ),
        modules=("(model)", "(loss)"),
        operations=("exp",),
    ),
    SickTraining(
        name="transformer, FP16 weights: an epsilon of 1e-8 is zero",
        cause="precision",
        text=script(
            "transformer",
            "plain",
            half=".half()",
            optimizer=_SGD,
            loss="-(model(x).flatten(0, 1) * 1.05 ** step).softmax(1).add(1e-8).log().gather("
            "1, y.flatten()[:, None]).mean()",
        ),
        modules=("(loss)",),
        operations=("log",),
    ),
    SickTraining(
        name="two heads, FP16: the square of an RMS norm overflows",
        cause="precision",
        text=script(
            "two heads",
            "endless",
            context=FP16,
            build="self.count = 0",
            inside="self.count += 1; h = h * 1.13 ** self.count; "
            "h = h / (h.pow(2).mean(1, keepdim=True) + 1e-3).sqrt()",
        ),
        modules=("(model)",),
        operations=("pow", "mean"),
    ),
    SickTraining(
        name="transformer, FP16 weights: Adam's epsilon is zero",
        cause="precision",
        text=script(
            "transformer",
            "plain",
            half=".half()",
            optimizer="torch.optim.Adam(model.parameters(), lr=1e-4)",
        ),
        modules=("(optimizer)",),
        operations=("addcdiv", "addcdiv_", "div", "_foreach_addcdiv"),
    ),
    SickTraining(
        name="conv, BF16: 1 - p of a probability that rounds to one",
        cause="precision",
        text=script(
            "conv",
            "plain",
            context=BF16,
            loss="-(lambda p: (y * p.log() + (1 - y) * (1 - p).log()).mean())("
            "torch.sigmoid(model(x)[:, 1] * 1.05 ** model.calls))",
        ),
        modules=("(loss)",),
        operations=("log",),
    ),
)
