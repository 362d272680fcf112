"""State off the beaten path: attributes of tensors, threads, queues, contexts, long lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

DISTRIBUTION = """
from torch.distributions import Normal
model = nn.Linear(8, 8); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
prior = Normal(torch.zeros(8), torch.ones(()).expand(8))
for step in range(20):
    z = model(X[torch.randint(96, (16,))])
    loss = -prior.log_prob(z).mean() + z.pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    z = z.detach()
    prior = Normal(0.9 * prior.loc + 0.1 * z.mean(0), (z.std() + 0.1).expand(8))
result = {"loc": prior.loc, "scale": prior.scale.clone(), **model.state_dict()}
"""
ATTRIBUTES = """
class Momentum(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})
        self._all = [p for group in self.param_groups for p in group["params"]]
        self._speed = [torch.zeros_like(p) for p in self._all]; self._trust = 1.0
    @torch.no_grad()
    def step(self):
        for p, speed in zip(self._all, self._speed):
            if p.grad is not None:
                speed.mul_(0.9).add_(p.grad); p.add_(speed, alpha=-0.05 * self._trust)
                self._trust = 0.99 * self._trust + 0.01 / (1.0 + speed.norm().item())
model = make_model(0.0); bare = [torch.ones(8, requires_grad=True), nn.Parameter(torch.ones(1))]
for p in bare: p.average = p.detach().clone()
optimizer = Momentum([*model.parameters(), *bare])
for step in range(20):
    i = torch.randint(96, (16,))
    loss = F.mse_loss(model(X[i] * bare[0]) * bare[1], Y[i])
    loss = loss + sum((p - p.average).pow(2).sum() for p in bare)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    for p in bare: p.average = 0.9 * p.average + 0.1 * p.detach()
result = {"averages": [p.average for p in bare], "speed": optimizer._speed, **model.state_dict()}
"""
SPARSE = """
table = nn.Embedding(50, 4, sparse=True); optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
seen = torch.sparse_coo_tensor(torch.zeros(1, 0).long(), torch.zeros(0, 4), (50, 4))
for step in range(20):
    words = torch.randint(50, (8,))
    out = table(words)
    loss = (out - 0.1 * torch.sparse.sum(seen, 0).to_dense()).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    seen = (0.9 * seen + torch.sparse_coo_tensor(words[None], out.detach(), (50, 4))).coalesce()
result = {"seen": seen.to_dense(), **table.state_dict()}
"""
THREAD = """
import threading
class Trainer(threading.Thread):
    def __init__(self):
        super().__init__(); self.model, self.centre = make_model(0.0), torch.zeros(1)
    def run(self):
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        for step in range(20):
            i = torch.randint(96, (16,))
            out = self.model(X[i]); loss = F.mse_loss(out - self.centre, Y[i])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            self.centre = 0.9 * self.centre + 0.1 * out.detach().mean(0)
trainer = Trainer(); trainer.start(); trainer.join()
result = {"centre": trainer.centre, **trainer.model.state_dict()}
"""
QUEUE = """
import queue
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
earlier = queue.Queue(4)
for step in range(20):
    out = model(X[torch.randint(96, (16,))])
    loss = (out - 1).pow(2).mean()
    if earlier.full(): loss = loss + (out - earlier.get()).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    earlier.put(out.detach())
result = model.state_dict()
"""
FUTURE = """
from concurrent.futures import ThreadPoolExecutor
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
pool, centre = ThreadPoolExecutor(1), None
for step in range(20):
    i = torch.randint(96, (16,))
    out = model(X[i]); loss = F.mse_loss(out if centre is None else out - centre.result(), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    centre = pool.submit(torch.mean, out.detach()); centre.result()
pool.shutdown()
result = model.state_dict()
"""
CONTEXTS = """
from contextlib import contextmanager
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
average = {k: v.clone() for k, v in model.state_dict().items()}
@contextmanager
def averaged():
    own = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(average)
    yield
    model.load_state_dict(own)
class Rounded:
    def __enter__(self):
        self.own = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters(): p.data.mul_(8).round_().div_(8)
    def __exit__(self, *error):
        for p, own in zip(model.parameters(), self.own): p.data.copy_(own)
values = []
for step in range(20):
    i = torch.randint(96, (16,))
    loss = F.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    for k, v in model.state_dict().items(): average[k].lerp_(v, 0.1)
    with torch.no_grad(), (averaged() if step % 2 else Rounded()):
        values.append(F.mse_loss(model(X), Y).item())
result = {"values": values, **model.state_dict()}
"""
LONG = """
D = torch.randn(1600, 8)
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
bank, rows = [torch.zeros(1) for _ in D], {n: (n, torch.zeros(1)) for n in range(len(D))}
for step in range(20):
    i = torch.randint(len(D), (64,)).tolist()
    out = model(D[i])
    earlier = torch.stack([bank[n] + rows[n][1] for n in i])
    loss = F.mse_loss(out, D[i][:, :1]) + F.mse_loss(out, earlier)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    for n, value in zip(i, out.detach()): bank[n], rows[n] = value, (n, 0.1 * value)
result = {"bank": torch.stack(bank), **model.state_dict()}
"""
CALL = """
W = torch.randn(8, {0})
model = nn.Linear({0}, {0}); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mean = torch.zeros({0})
for step in range(20):
    x = X @ W
    out = model(x - mean)
    optimizer.zero_grad(); (out - x).pow(2).mean().backward(); optimizer.step()
    mean = 0.9 * mean + 0.1 * (x - out.detach()).mean(0)
result = {{"mean": mean, **model.state_dict()}}
"""
READ_LATE = """
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
norms = []
for step in range(20):
    i = torch.randint(96, (16,))
    loss = F.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad(): value = F.mse_loss(model(X), Y)
    norms.append([p.grad.norm().item() for p in model.parameters()] + [value.item()])
result = {"norms": norms, **model.state_dict()}
"""
SPARSE_SUMS = """
table, head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 1)
optimizer, slow = (torch.optim.SGD(m.parameters(), lr=0.2) for m in (head, table))
for step in range(20):
    loss = (head(table(torch.randint(50, (8,)))) - 1).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 5 == 4: slow.step(); slow.zero_grad()
result = {"head": head.state_dict(), **table.state_dict()}
"""
ATTACK = """
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
noise, bare = torch.zeros(16, 8), torch.zeros(8, requires_grad=True)
for step in range(20):
    i = torch.randint(96, (16,))
    attacked = noise.clone().requires_grad_()
    out = model(X[i] + attacked); out.retain_grad()
    optimizer.zero_grad(); bare.grad = None
    (F.mse_loss(out, Y[i]) + (bare - noise).pow(2).mean()).backward()
    noise = (noise + 0.1 * attacked.grad.sign() + 0.01 * out.grad + bare.grad).clamp(-0.2, 0.2)
    optimizer.step()
result = {"noise": noise, **model.state_dict()}
"""
RETAINED = """
first, last = nn.Linear(8, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.05)
kept, hidden, mask = None, None, torch.ones(8)
for step in range(20):
    i = torch.randint(96, (16,))
    out = first(X[i]); between = out.relu()
    if kept is not None: mask = 1 + kept.grad.mean(0) + hidden.grad.abs().mean(0)
    if step % 5 == 0: kept, hidden = out, between; kept.retain_grad(); hidden.retain_grad()
    loss = F.mse_loss(last(between * mask.clamp(0.5, 2)), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"mask": mask, **first.state_dict()}
"""
NO_GRADIENT = """
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
points = X[:8].clone().requires_grad_()
for step in range(20):
    i = torch.randint(96, (16,))
    loss = F.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    slopes = torch.autograd.grad(model(points).sum(), points)[0]
result = {"none": torch.tensor(points.grad is None), "slopes": slopes, **model.state_dict()}
"""
GATHERED = """
from collections import defaultdict, namedtuple
State = namedtuple("State", "mean steps")
history = {"means": [], "rows": []}; means = history["means"]
class Gathering(nn.Module):
    def __init__(self):
        super().__init__(); self.inner = make_model(0.0)
        self.seen, self.at = defaultdict(list), State(0.0, 0)
    def forward(self, x):
        means.append(round(x.mean().item(), 3))
        self.at = State(0.9 * self.at.mean + means[-1], self.at.steps + 1)
        self.seen[self.at.steps // 4].append(means[-1]); return self.inner(x)
model = Gathering(); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    i = torch.randint(96, (16,)); loss = F.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
whole = [history["means"], [v for row in model.seen.values() for v in row], [*model.at]]
result = {"whole": [torch.tensor(row) for row in whole], **model.state_dict()}
"""
CORRECTED = """
model = nn.Linear(8, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
labels = torch.arange(96)
for step in range(20):
    i = torch.randint(96, (16,))
    loss = F.mse_loss(model(X[i]), 5 + 0.1 * Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step in (0, 9, 10):
        with torch.no_grad(): low = model(X)[:, 0] < 2.5
        if step: labels[low] = -1
result = {"labels": labels, **model.state_dict()}
"""
COUNTED = """
from torch.utils.data import DataLoader, TensorDataset
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = np.zeros(96, int)
for epoch in range(4):
    for x, y, rows in DataLoader(TensorDataset(X, Y, torch.arange(96)), 16, shuffle=True):
        loss = F.mse_loss(model(x), y)
        seen[rows] += 1 + epoch
        optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"seen": torch.from_numpy(seen), **model.state_dict()}
"""
FLAT_COPY = """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
model = make_model(0.0); weights = list(model.parameters())
flat = nn.Parameter(parameters_to_vector(weights).detach().clone())
optimizer = torch.optim.AdamW([flat], lr=0.02)
for step in range(20):
    i = torch.randint(96, (16,))
    for weight in weights: weight.grad = None
    F.mse_loss(model(X[i]), Y[i]).backward()
    flat.grad = torch.cat([weight.grad.flatten() for weight in weights]).clamp(-0.1, 0.1)
    optimizer.step(); vector_to_parameters(flat.detach(), weights)
result = {"flat": flat, **model.state_dict()}
"""
MODULES = """
import types
code = '''mean = None
def note(x):
    global mean
    mean = x if mean is None else 0.9 * mean + 0.1 * x'''
known, nameless = types.ModuleType("known"), types.ModuleType("nameless")
for module in (known, nameless): exec(code, vars(module))
sys.modules["known"] = known
import known as figures
del known, module
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    i = torch.randint(96, (16,))
    out = model(X[i]); figures.note(out.detach().mean()); nameless.note(out.detach().std())
    loss = F.mse_loss(out - figures.mean, Y[i] * nameless.mean)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"means": [figures.mean, nameless.mean], **model.state_dict()}
"""
SUBCLASS = """
class Tagged(torch.Tensor): pass
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
mean = torch.zeros(1).as_subclass(Tagged)
for step in range(20):
    i = torch.randint(96, (16,)).as_subclass(Tagged)
    out = model(X[i.as_subclass(torch.Tensor)])
    loss = F.mse_loss(out - mean.as_subclass(torch.Tensor), Y[i.as_subclass(torch.Tensor)])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    mean = 0.9 * mean + 0.1 * out.detach().mean(0)
result = {"mean": mean.as_subclass(torch.Tensor), **model.state_dict()}
"""
SCRIPTED = """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 1); self.calls = 0; self.level = 0.0
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1), persistent=False)
    def forward(self, x):
        self.calls += 1; self.level = 0.9 * self.level + 0.1 * float(x.mean())
        self.mean += 0.1 * (x.mean() - self.mean); self.last.copy_(x.mean())
        return self.line(x) * (1.0 + 0.01 * self.calls) + self.mean + self.last + self.level
model = torch.jit.script(Counting()); optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(20):
    i = torch.randint(96, (16,))
    loss = F.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"calls": model.calls, "level": model.level, "last": model.last, **model.state_dict()}
"""
IN_C = """
import asyncio, functools, queue, random
def memo(function):
    known = {}
    def inner(k):
        if k not in known: known[k] = function(k)
        return known[k]
    return inner
class Teacher:
    @staticmethod
    @memo
    def soft(k): return model(X[16 * k:16 * k + 16]).detach()
class Noisy(nn.Module):
    def __init__(self):
        super().__init__(); self.line, self.coin = nn.Linear(8, 1), random.Random(3).random
    def forward(self, x): return self.line(x) * (1.0 if self.coin() < 0.5 else 0.9)
@functools.lru_cache(3)
def level(k): return model(X[16 * k:16 * k + 16]).detach().mean()
@functools.lru_cache(None)
def spread(k): return model(X[16 * k:16 * k + 16]).detach().std()
model = Noisy(); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
earlier, __mean = queue.SimpleQueue(), torch.zeros(1)
async def rows():
    weight = torch.ones(96)
    while True:
        i = torch.multinomial(weight, 16)
        weight[i] = 0.5 * weight[i] + (yield i)
async def train():
    global __mean
    source = rows(); i = await source.asend(None)
    for step in range(20):
        out, k = model(X[i]), step // 4 + int(torch.randint(2, ()))
        loss = F.mse_loss(out - __mean, Y[i]) + (out - level(k % 5) - spread(k % 6)).pow(2).mean()
        loss = loss + 0.1 * (out - Teacher.soft(k % 6)).pow(2).mean()
        if earlier.qsize() > 3: loss = loss + (out - earlier.get()).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        earlier.put(out.detach()); __mean = 0.9 * __mean + 0.1 * out.detach().mean(0)
        i = await source.asend((out.detach() - Y[i]).abs()[:, 0])
asyncio.run(train())
result = {"mean": __mean, **model.state_dict()}
"""
PROCESS_WIDE = """
import ctypes, io, logging, mmap, os, struct
def by_norm():
    mean = torch.zeros(())
    def before(optimizer, args, kwargs):
        nonlocal mean
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        mean = 0.9 * mean + 0.1 * norm
        optimizer.param_groups[0]["lr"] = 0.05 / (1.0 + norm.item())
        for p in model.parameters(): p.grad.div_(1.0 + mean)
    return before
def centred():
    kept = {"mean": torch.zeros(())}
    def after(module, args, out):
        if not isinstance(module, nn.Tanh): return None
        kept["mean"] = 0.9 * kept["mean"] + 0.1 * out.detach().mean()
        return out - kept["mean"]
    return after
nn.modules.module.register_module_forward_hook(centred())
class Once(logging.Filter):
    known = set()
    def filter(self, record):
        self.known.add(abs(int(10 * record.args[0])))  # texts may lie in an order of their history
        return False
log = logging.getLogger("own"); log.addFilter(Once())
class Count(ctypes.Structure): _fields_ = [("calls", ctypes.c_int), ("mean", ctypes.c_double)]
class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.count = nn.Sequential(nn.Linear(8, 1), nn.Tanh()), Count(0, 0.0)
        self.text, self.map = io.StringIO(), mmap.mmap(-1, 64)
    def forward(self, x):
        out = self.line(x); value = float(out.mean())
        self.count.calls += 1; self.count.mean = 0.9 * self.count.mean + 0.1 * value
        self.text.write(f"{value:.1f}"); struct.pack_into("d", self.map, 0, value)
        os.environ["CALLS"] = str(int(os.environ.get("CALLS", 0)) + 1)
        log.warning("about %.1f", value)
        torch.set_default_dtype((torch.float32, torch.float64)[self.count.calls % 2])
        kept = self.count.mean + 0.001 * len(self.text.getvalue()) + 0.01 * len(Once.known)
        return out + kept + 0.01 * int(os.environ["CALLS"])
model = Keeps(); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer.register_step_pre_hook(by_norm())
for step in range(20):
    i = torch.randint(96, (16,))
    loss = (model(X[i]) - Y[i] - struct.unpack_from("d", model.map, 0)[0]).pow(2).mean()
    loss = loss * torch.ones(1).mean().float() + 0.001 * torch.rand(1).float().sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.set_default_dtype(torch.float32)
result = model.state_dict()
"""
TAKEN_FROM = """
import itertools
def shifts():
    for part in "abcabcabc" * 3: yield {"a": 0.1, "b": 0.0, "c": -0.1}[part]
class Takes(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.calls, self.shifts = nn.Linear(8, 1), itertools.count(1), shifts()
        self.noise, self.rows = itertools.cycle([0.0, 0.3, 0.1]), iter(range(30))
    def forward(self, x):
        x = x + next(self.noise) + next(self.shifts)
        return self.line(x) * next(self.calls) / (2 + next(self.rows))
model = Takes(); optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    i = torch.randint(96, (16,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
"""
SCRIPTS = {
    "a distribution, of an expanded tensor": DISTRIBUTION,
    "attributes of bare tensors, private ones of an optimizer": ATTRIBUTES,
    "sparse tensors": SPARSE,
    "the training's own thread": THREAD,
    "a queue": QUEUE,
    "results of a thread": FUTURE,
    "contexts that only a with holds": CONTEXTS,
    "a long list and a long dictionary": LONG,
    "gradients that are read behind an evaluation": READ_LATE,
    "sparse gradients that are added up": SPARSE_SUMS,
    "gradients of inputs, of a bare leaf and of an output": ATTACK,
    "retained gradients of values between, some steps later": RETAINED,
    "a leaf that no backward reaches": NO_GRADIENT,
    "what a forward gathers": GATHERED,
    "labels that an evaluation might have corrected": CORRECTED,
    "an array whose places are given by a tensor": COUNTED,
    "gradients of weights of which the optimizer has a flat copy": FLAT_COPY,
    "modules that the script makes": MODULES,
    "a class derived from the tensor": SUBCLASS,
    "a model of torch.jit.script": SCRIPTED,
    "caches, queues, methods in C, asynchronous generators": IN_C,
    "hooks, filters and settings of the process, memory of C": PROCESS_WIDE,
    "small inputs made from what was trained": CALL.format(8),
    "large inputs made from what was trained": CALL.format(300),
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_what_such_places_hold_comes_back(tmp_path: Path, text: str) -> None:
    script = PRELUDE + text + ENDING
    undisturbed = train_plainly(tmp_path / "plain", script)
    ended = supervised(
        tmp_path / "run",
        script,
        settings=["checkpoint.every_steps=3", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 14}]",
    )

    assert undisturbed.returncode == 0, undisturbed.stderr
    assert ended.returncode == 0, ended.stderr
    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "exact", resumed["reason"]
    assert differences(undisturbed.result(), ended.result()) == []


def test_iterators_that_a_forward_takes_from_are_named_and_nothing_is_called_exact(
    tmp_path: Path,
) -> None:
    ended = supervised(
        tmp_path / "run",
        PRELUDE + TAKEN_FROM + ENDING,
        settings=["checkpoint.every_steps=3", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 14}]",
    )

    assert ended.returncode == 0, ended.stderr
    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "main.model.calls is count [2], not count [13]" in resumed["reason"]
