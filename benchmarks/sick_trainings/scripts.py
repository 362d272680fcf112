"""Scripts of different architecture and loop for sick trainings.

Both are texts with places ``@name@``; what a training puts there is its sickness. A loop takes 960
samples in batches of 8 to about step 90, unless it says otherwise.
"""

from __future__ import annotations

import re

_HEAD = """
import contextlib, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(@seed@); torch.set_num_threads(1)
"""

_CONV = """
X = torch.randn(960, 1, 8, 8); Y = (X.mean((1, 2, 3)) > 0).long()
@data@

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2)
        self.head = nn.Linear(72, 2)
        self.calls = 0
        @build@

    def forward(self, x):
        self.calls += 1
        @first@
        h = F.relu(self.norm(self.conv1(x)))
        @inside@
        h = F.relu(self.conv2(h)).flatten(1)
        return self.head(h)

def loss_of(model, batch):
    x, y = batch
    return @loss=F.cross_entropy(model(x), y)@

dataset = TensorDataset(X, Y)
"""

_TRANSFORMER = """
X = torch.randint(1, 32, (960, 12)); Y = (X + 1) % 32
@data@

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        q, k, v = self.q(x), self.k(x), self.v(x)
        @inside@
        scores = torch.matmul(q, k.transpose(-1, -2)) / 4
        @mask@
        return torch.matmul(torch.softmax(scores, -1), v)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(16), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        @build@

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        @block@
        return x + self.mlp(self.norm2(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 32)

    def forward(self, tokens):
        self.padded = tokens == 0
        h = self.embed(tokens)
        for block in self.blocks:
            @before_block@
            h = block(h)
        return self.head(h)

def loss_of(model, batch):
    x, y = batch
    return @loss=F.cross_entropy(model(x).flatten(0, 1), y.flatten())@

dataset = TensorDataset(X, Y)
"""

_RECURRENT = """
X = torch.randn(960, 10, 4); Y = X.mean(1)[:, :1]
@data@

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.across = nn.Linear(4, 12), nn.Linear(12, 12)
        @cell@

    def forward(self, x, h):
        return @recurrence=torch.tanh(self.inward(x) + self.across(h))@

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = Cell(), nn.Linear(12, 1)
        self.h = torch.zeros(8, 12)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        h = @state=torch.zeros(len(x), 12)@
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        @inside@
        return self.head(h)

def loss_of(model, batch):
    x, y = batch
    return @loss=F.mse_loss(model(x), y)@

dataset = TensorDataset(X, Y)
"""

_VAE = """
X = torch.randn(960, 4) @ torch.randn(4, 16)
@data@

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.mu, self.logvar = nn.Linear(24, 3), nn.Linear(24, 3)
        self.decoder = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 16))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        @inside@
        z = mu + torch.randn_like(mu) * @spread=torch.exp(0.5 * logvar)@
        return self.decoder(z), mu, logvar

def loss_of(model, batch):
    x, = batch
    seen, mu, logvar = model(x)
    divergence = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()
    return @loss=F.mse_loss(seen, x) + 1e-3 * divergence@

dataset = TensorDataset(X)
"""

_TWO_HEADS = """
class Samples(Dataset):
    def __init__(self):
        self.user = torch.randint(0, 50, (960,)); self.item = torch.randn(960, 6)
        self.label = torch.randint(0, 3, (960,)); self.value = self.item.sum(1)
        @data@

    def __len__(self):
        return 960

    def __getitem__(self, at):
        return {"user": self.user[at], "item": self.item[at],
                "label": self.label[at], "value": self.value[at]}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Linear(6, 8)
        self.trunk = nn.Sequential(nn.Linear(16, 16), nn.SiLU())
        self.classes, self.amount = nn.Linear(16, 3), nn.Linear(16, 1)
        @build@

    def forward(self, user, item, label=None, value=None):
        h = self.trunk(torch.cat([self.users(user), self.items(item)], 1))
        @inside@
        return {"logits": self.classes(h), "amount": self.amount(h)[:, 0], "names": ["a", "b"]}

def loss_of(model, batch):
    out = model(**batch)
    first = @classes=F.cross_entropy(out["logits"], batch["label"])@
    return first + @amounts=F.mse_loss(out["amount"], batch["value"])@

dataset = Samples()
"""

_MODEL = """
model = Net()@half@
optimizer = @optimizer=torch.optim.Adam(model.parameters(), lr=3e-3)@
"""

_PLAIN = """
loader = DataLoader(dataset, batch_size=8)
for step, batch in enumerate(loader):
    @before@
    with @context=contextlib.nullcontext()@:
        loss = loss_of(model, batch)
    @check@
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    @after@
"""

_TRAINER = """
class Trainer:
    def __init__(self):
        self.loader = DataLoader(dataset, batch_size=16, shuffle=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: @rate=1.0@)
        self.history = []

    def training_step(self, batch):
        with @context=contextlib.nullcontext()@:
            loss = loss_of(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss

    def fit(self, epochs):
        for epoch in range(epochs):
            for batch in self.loader:
                step = len(self.history)
                @before@
                loss = self.training_step(batch)
                optimizer.step(); self.schedule.step()
                self.history.append(loss.item())
                @after@

def main():
    Trainer().fit(2)

if __name__ == "__main__":
    main()
"""

_ACCUMULATING = """
loader = DataLoader(dataset, batch_size=4)
step = 0
for at, batch in enumerate(loader):
    @before@
    with @context=contextlib.nullcontext()@:
        loss = loss_of(model, batch) / 2
    @check@
    loss.backward()
    if at % 2 == 1:
        optimizer.step(); optimizer.zero_grad(); step += 1
"""

_ENDLESS = """
def endless(loader):
    while True:
        yield from loader

stream = endless(DataLoader(dataset, batch_size=8, shuffle=@shuffle=False@, drop_last=True))
average = [p.detach().clone() for p in model.parameters()]
for step in range(110):
    batch = next(stream)
    @before@
    with @context=contextlib.nullcontext()@:
        loss = loss_of(model, batch)
    @check@
    optimizer.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), @clip=5.0@)
    optimizer.step()
    with torch.no_grad():
        for kept, p in zip(average, model.parameters()): kept.lerp_(p, 0.01)
    @after@
"""

_DRAWN = """
for step in range(110):
    batch = dataset[torch.randint(0, len(dataset), (8,))]
    @before@
    with @context=contextlib.nullcontext()@:
        loss = loss_of(model, batch)
    @check@
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    @after@
"""

_SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
loader = DataLoader(dataset, batch_size=8)
for step, batch in enumerate(loader):
    @before@
    with @context=torch.autocast("cpu", torch.float16)@:
        loss = loss_of(model, batch)
    optimizer.zero_grad(); scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    scaler.step(optimizer); scaler.update()
    @check@
"""

ARCHITECTURES = {
    "conv": _CONV,
    "transformer": _TRANSFORMER,
    "recurrent": _RECURRENT,
    "vae": _VAE,
    "two heads": _TWO_HEADS,
}
LOOPS = {
    "plain": _PLAIN,
    "trainer": _TRAINER,
    "accumulating": _ACCUMULATING,
    "endless": _ENDLESS,
    "drawn": _DRAWN,
    "scaled": _SCALED,
}

CHECK = "if not math.isfinite(loss.item()): raise FloatingPointError(f'loss {loss} at {step}')"
FP16 = 'torch.autocast("cpu", torch.float16)'
BF16 = 'torch.autocast("cpu", torch.bfloat16)'


def script(architecture: str, loop: str, *, seed: int = 1, stops: bool = False, **put: str) -> str:
    """Returns the text of a script.

    Args:
        architecture, loop: keys of `ARCHITECTURES` and `LOOPS`.
        seed: of torch.
        stops: the script raises by itself at a loss that is not finite.
        put: name of a place → what to put there; empty places become ``pass``.
    """
    text = _HEAD + ARCHITECTURES[architecture] + _MODEL + LOOPS[loop]
    put = {"seed": str(seed), "check": CHECK if stops else "pass", "half": "", **put}
    unknown = [name for name in put if not re.search(rf"@{name}[=@]", text)]
    if set(unknown) - {"check"}:
        raise ValueError(f"{architecture}, {loop}: no place {unknown}")

    def fill(place: re.Match[str]) -> str:
        name, default = place[1], place[2]
        return put.get(name, default if default is not None else "pass")

    return re.sub(r"@(\w+)(?:=([^@\n]*))?@", fill, text)
