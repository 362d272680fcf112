"""The first sick trainings: one small network on 960 samples in batches of 8, sick at step 60.

What is put into the places of `_TRAINING` is the sickness; where it sits is written beside it.
"""

from __future__ import annotations

from benchmarks.sick_trainings.sick_training import SickTraining

_TRAINING = """
import contextlib
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1); torch.set_num_threads(1)
X = torch.randn(960, 8); Y = (X[:, :1] * 2).sin()
{data}

{middle}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16, bias={bias})
        self.middle = Middle()
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.middle(torch.relu(self.first(x))))

model = Net(){half}
optimizer = {optimizer}
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle={shuffle})
for step, (x, y) in enumerate(loader):
    {before}
    with {context}:
        loss = {loss}
    {check}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    {after}
"""

_ADAM = "torch.optim.Adam(model.parameters(), lr=1e-2)"
_MIDDLE = """class Middle(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(16, 16), nn.ReLU())"""
_CHECK = "if not torch.isfinite(loss): raise FloatingPointError(f'loss {loss} at step {step}')"
_FP16 = "torch.autocast('cpu', torch.float16)"
_BF16 = "torch.autocast('cpu', torch.bfloat16)"


def _script(
    *,
    data: str = "",
    middle: str = _MIDDLE,
    bias: bool = True,
    half: str = "",
    optimizer: str = _ADAM,
    shuffle: bool = False,
    before: str = "pass",
    context: str = "contextlib.nullcontext()",
    loss: str = "F.mse_loss(model(x), y)",
    stops: bool = False,
    after: str = "pass",
) -> str:
    return _TRAINING.format(
        data=data,
        middle=middle,
        bias=bias,
        half=half,
        optimizer=optimizer,
        shuffle=shuffle,
        before=before,
        context=context,
        loss=loss,
        check=_CHECK if stops else "pass",
        after=after,
    )


def _middle(forward: str, build: str = "pass") -> str:
    return f"""class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        {build}

    def forward(self, x):
        self.count += 1
        {forward}"""


_SECOND_MOMENT = (
    "if step == 60: [state['exp_avg_sq'].mul_(1e-9) for state in optimizer.state.values()]"
)
_TABLE = _middle("return x + self.table[int(self.count) - 1]", "self.table = torch.zeros(60, 16)")
_ANNEALED = _middle("return x / (1 - (self.count - 1) / 60)")
_GROWING_UP = _middle(
    "return self.down(F.layer_norm(self.up(x * (1.18 ** self.count / 20)), (32,)))",
    "self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16); self.up.weight.data.mul_(20)",
)
_GROWING_SCORES = _middle(
    "q, k = self.q(x * 1.1 ** self.count), self.k(x * 1.1 ** self.count); "
    "return torch.softmax(torch.matmul(q, k.T), -1) @ x",
    "self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)",
)
_STANDARDISED = _middle(
    "h = self.mix(x); "
    "return (h - h.mean(1, keepdim=True)) / h.var(1, keepdim=True, unbiased=False).sqrt()",
    "self.mix = nn.Linear(16, 16, bias=False)",
)
_MEAN_OF_ACTIVE = _middle(
    "h = self.mix(x); keep = (x > 0).float(); return (h * keep) / keep.sum(1, keepdim=True)",
    "self.mix = nn.Linear(16, 16)",
)
_DISTANCE = _middle(
    "d = (x * self.scale).pow(2).sum(1, keepdim=True).sqrt(); return torch.tanh(self.mix(d))",
    "self.scale, self.mix = nn.Parameter(torch.ones(16)), nn.Linear(1, 16)",
)

SMALL_NETWORK = (
    SickTraining(
        name="NaN in one sample",
        cause="data",
        text=_script(data="X[8 * 60 + 3] = float('nan')"),
        sample=3,
    ),
    SickTraining(
        name="NaN in one sample, script raises",
        cause="data",
        text=_script(data="X[8 * 60 + 6, 2] = float('nan')", stops=True),
        sample=6,
    ),
    SickTraining(
        name="one sample a hundred thousand times too large",
        cause="data",
        text=_script(data="X[8 * 60 + 5] *= 1e5"),
        sample=5,
    ),
    SickTraining(
        name="infinite target of one sample",
        cause="data",
        text=_script(data="Y[8 * 60 + 2] = float('inf')"),
        sample=2,
    ),
    SickTraining(
        name="a whole batch in other units",
        cause="data",
        text=_script(data="X[8 * 60 : 8 * 61] *= 1e4"),
    ),
    SickTraining(
        name="schedule jumps to a thousandfold rate (Adam)",
        cause="learning_rate",
        text=_script(before="if step == 60: optimizer.param_groups[0]['lr'] = 10.0"),
    ),
    SickTraining(
        name="rate too high from the start (SGD)",
        cause="learning_rate",
        text=_script(optimizer="torch.optim.SGD(model.parameters(), lr=3.0)", stops=True),
    ),
    SickTraining(
        name="warm-up that never ends (SGD)",
        cause="learning_rate",
        text=_script(
            optimizer="torch.optim.SGD(model.parameters(), lr=1e-3)",
            before="optimizer.param_groups[0]['lr'] = 1e-3 * 1.15 ** step",
            stops=True,
        ),
    ),
    SickTraining(
        name="FP16: a linear layer overflows",
        cause="precision",
        text=_script(middle=_GROWING_UP, context=_FP16),
        modules=("middle.up",),
        operations=("linear", "addmm", "mkldnn_linear"),
    ),
    SickTraining(
        name="FP16: attention scores overflow, script raises",
        cause="precision",
        text=_script(middle=_GROWING_SCORES, context=_FP16, stops=True),
        modules=("middle",),
        operations=("matmul", "mm", "bmm"),
    ),
    SickTraining(
        name="FP16 weights: the loss's sum overflows",
        cause="precision",
        text=_script(
            data="Y = (15 * 1.03 ** (torch.arange(960) // 8))[:, None].expand(960, 1).clone()",
            half=".half()",
            optimizer="torch.optim.SGD(model.parameters(), lr=1e-6)",
            loss="((model(x.to(model.last.weight.dtype)) - y.half()) ** 2).sum()",
        ),
        modules=("(loss)",),
        operations=("sum", "pow"),
    ),
    SickTraining(
        name="BF16: a probability rounds to one, its complement's log",
        cause="precision",
        text=_script(
            data="Y = (X[:, :1] > 0).float(); X[:, :1] += X[:, :1].sign()",
            context=_BF16,
            loss="(lambda p: -(y * p.log() + (1 - y) * (1 - p).log()).mean())"
            "(torch.sigmoid(model(x)))",
        ),
        modules=("(loss)",),
        operations=("log",),
    ),
    SickTraining(
        name="second moment damaged (injected)",
        cause="optimizer_state",
        text=_script(),
        faults="[{kind: second_moment, step: 60, factor: 1.0e-9}]",
    ),
    SickTraining(
        name="second moment damaged by the script",
        cause="optimizer_state",
        text=_script(before=_SECOND_MOMENT),
    ),
    SickTraining(
        name="a weight overwritten",
        cause="weights",
        text=_script(),
        faults="[{kind: weight, step: 60}]",
    ),
    SickTraining(
        name="division by an annealed temperature",
        cause="model_code",
        text=_script(middle=_ANNEALED),
        modules=("middle",),
        operations=("div",),
    ),
    SickTraining(
        name="log of a loss weight that reaches zero",
        cause="model_code",
        text=_script(
            loss="F.mse_loss(model(x), y) - 0.01 * torch.log(torch.tensor(1 - step / 60))",
            stops=True,
        ),
        modules=("(loss)",),
        operations=("log",),
    ),
    SickTraining(
        name="standardisation without eps meets a constant sample",
        cause="model_code",
        text=_script(middle=_STANDARDISED, data="X[8 * 60 + 6] = 0", bias=False),
        sample=6,
        modules=("middle",),
        operations=("div",),
    ),
    SickTraining(
        name="mean over active units, none is active",
        cause="model_code",
        text=_script(middle=_MEAN_OF_ACTIVE, data="X[8 * 60 + 1] = 0", bias=False, stops=True),
        sample=1,
        modules=("middle",),
        operations=("div",),
    ),
    SickTraining(
        name="derivative of a distance of zero",
        cause="model_code",
        text=_script(middle=_DISTANCE, data="X[8 * 60 + 4] = 0", bias=False),
        sample=4,
        modules=("middle",),
        operations=("sqrt",),
    ),
    SickTraining(
        name="index beyond a table",
        cause="model_code",
        text=_script(middle=_TABLE),
    ),
    SickTraining(
        name="a gradient spoiled by the machine",
        cause="transient",
        text=_script(),
        faults="[{kind: nan_gradient, step: 60, transient: true}]",
    ),
    SickTraining(
        name="a weight spoiled by the machine",
        cause="transient",
        text=_script(),
        faults="[{kind: weight, step: 60, transient: true}]",
    ),
    SickTraining(
        name="killed by the machine",
        cause="transient",
        text=_script(),
        faults="[{kind: sigkill, step: 60}]",
    ),
)
