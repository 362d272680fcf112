"""The ways in which people write training loops, each as a whole script that knows nothing of us.

Every script trains for about 40 steps in under a second, prints as it goes, and saves what it ended
with to the path given as its last argument. `PRELUDE` and `ENDING` frame each of them.
"""

from __future__ import annotations

PRELUDE = """
import random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
import torch.nn.functional as F

torch.manual_seed(1); random.seed(1); np.random.seed(1); torch.set_num_threads(1)
X = torch.randn(96, 8); Y = (X[:, :1] * 2 + X[:, 1:2]).sin()

def make_model(dropout=0.1):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))
"""

ENDING = """
torch.save(result, sys.argv[-1])
"""

LOOP_STYLES = {
    "epochs over a shuffling loader": """
model = make_model(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print("epoch", epoch, total)
result = {"model": model.state_dict(), "total": total}
""",
    "endless loop with a prefetched batch": """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
def get_batch():
    i = torch.randint(0, 96, (8,)); return X[i], Y[i]
x, y = get_batch(); step = 0
while True:
    loss = F.mse_loss(model(x), y)
    x, y = get_batch()
    loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
    step += 1
    if step % 10 == 0: print(step, loss.item())
    if step >= 40: break
result = {"model": model.state_dict(), "x": x}
""",
    "infinite iterator with next": """
model = make_model(); optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
def cycle(loader):
    while True:
        yield from loader
batches = iter(cycle(DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)))
for step in range(40):
    x, y = next(batches)
    loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
""",
    "distributed sampler with set_epoch": """
from torch.utils.data.distributed import DistributedSampler
data = TensorDataset(X, Y)
sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
model = make_model(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
""",
    "iterable dataset": """
class Stream(IterableDataset):
    def __iter__(self):
        buffer = list(range(96)); random.shuffle(buffer)
        for i in buffer: yield X[i] + 0.01 * torch.randn(8), Y[i]
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    for x, y in DataLoader(Stream(), batch_size=8):
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
""",
    "loader workers with augmentation": """
class Augmented(Dataset):
    def __len__(self): return 96
    def __getitem__(self, i):
        return X[i] + 0.1 * torch.randn(8) + 0.1 * random.random() + float(np.random.rand()), Y[i]
def seed_numpy(worker):
    np.random.seed(torch.initial_seed() % 2**32)
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Augmented(), 8, shuffle=True, num_workers=2, worker_init_fn=seed_numpy)
for epoch in range(3):
    for x, y in loader:
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
""",
    "persistent loader workers": """
class Augmented(Dataset):
    def __len__(self): return 96
    def __getitem__(self, i): return X[i] + 0.1 * torch.randn(8), Y[i]
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Augmented(), 8, shuffle=True, num_workers=1, persistent_workers=True)
for epoch in range(3):
    for x, y in loader:
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
""",
    "evaluation inside, plateau schedule, early stopping": """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
loader = DataLoader(TensorDataset(X[:64], Y[:64]), batch_size=8, shuffle=True)
best, bad, history = float("inf"), 0, []
for epoch in range(8):
    model.train()
    for x, y in loader:
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
    model.eval()
    with torch.no_grad(): value = F.mse_loss(model(X[64:]), Y[64:])
    schedule.step(value); history.append(value.item())
    if value < best: best, bad = value.item(), 0
    else: bad += 1
    print(epoch, history[-1], optimizer.param_groups[0]["lr"])
    if bad >= 3: break
result = {"model": model.state_dict(), "history": history, "lr": optimizer.param_groups[0]["lr"]}
""",
    "schedule by object with warm-up": """
model = make_model(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [
    torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10),
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)], [10])
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward()
    optimizer.step(); schedule.step()
result = {"model": model.state_dict(), "lr": schedule.get_last_lr()}
""",
    "schedule by hand": """
import math
model = make_model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
for step in range(40):
    for group in optimizer.param_groups:
        group["lr"] = 0.02 * (min(1.0, (step + 1) / 10) if step < 10 else 0.5 * (1 + math.cos(step / 40 * 3.14)))
    i = np.random.randint(0, 96, 8)
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
""",
    "gradient accumulation": """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / 3
        loss.backward()
        if (i + 1) % 3 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(); optimizer.zero_grad()
result = model.state_dict()
""",
    "mixed precision with scaler and clipping": """
model = make_model(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
for step in range(40):
    i = torch.randint(0, 96, (8,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(X[i]).float(), Y[i])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer); scaler.update()
result = {"model": model.state_dict(), "scale": scaler.get_scale(), "scaler": scaler.state_dict()}
""",
    "scaler that overflows": """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=5)
skipped = 0
for step in range(40):
    i = torch.randint(0, 96, (8,))
    optimizer.zero_grad()
    loss = F.mse_loss(model(X[i]), Y[i])
    scaler.scale(loss).backward()
    before = scaler.get_scale(); scaler.step(optimizer); scaler.update()
    skipped += scaler.get_scale() < before
result = {"model": model.state_dict(), "scale": scaler.get_scale(), "skipped": skipped}
""",
    "weight average by hand": """
import copy
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
average = copy.deepcopy(model); shadow = {k: v.clone() for k, v in model.state_dict().items()}
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()): a.lerp_(p, 0.1)
        for k, v in model.state_dict().items(): shadow[k] = 0.9 * shadow[k] + 0.1 * v
result = {"model": model.state_dict(), "average": average.state_dict(), "shadow": shadow}
""",
    "averaged model of torch": """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
average = torch.optim.swa_utils.AveragedModel(model)
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    average.update_parameters(model)
    if step % 10 == 9:
        with torch.no_grad(): print(step, F.mse_loss(average(X), Y).item())
result = {"model": model.state_dict(), "average": average.state_dict()}
""",
    "two optimizers against each other": """
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)); D = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
og = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9)); od = torch.optim.Adam(D.parameters(), lr=1e-3)
fixed = torch.randn(5, 4)
for step in range(40):
    real = X[torch.randint(0, 96, (8,))]; fake = G(torch.randn(8, 4))
    ld = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    od.zero_grad(); ld.backward(); od.step()
    lg = F.softplus(-D(fake)).mean(); og.zero_grad(); lg.backward(); og.step()
    if step % 10 == 0: print(step, ld.item(), lg.item())
result = {"G": G.state_dict(), "D": D.state_dict(), "sample": G(fixed).detach()}
""",
    "gradient penalty": """
D = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)); od = torch.optim.Adam(D.parameters(), lr=1e-3)
for step in range(40):
    x = X[torch.randint(0, 96, (8,))].clone().requires_grad_()
    score = D(x)
    grad, = torch.autograd.grad(score.sum(), x, create_graph=True)
    loss = score.mean() + 10 * (grad.norm(dim=1) - 1).square().mean()
    od.zero_grad(); loss.backward(); od.step()
result = D.state_dict()
""",
    "LBFGS with a closure": """
model = make_model(0.0); optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
calls = 0
for step in range(12):
    def closure():
        global calls
        calls += 1
        optimizer.zero_grad(); loss = F.mse_loss(model(X), Y); loss.backward(); return loss
    loss = optimizer.step(closure)
    print(step, loss.item())
result = {"model": model.state_dict(), "calls": calls}
""",
    "compiled model": """
import shutil
backend = "inductor" if shutil.which("gcc") else "aot_eager"
model = make_model(0.0); compiled = torch.compile(model, backend=backend)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(compiled(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
""",
    "recurrent state carried over": """
cell = nn.LSTM(8, 16); head = nn.Linear(16, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-2)
state = None
for step in range(40):
    i = torch.randint(0, 90, ()).item()
    out, state = cell(X[i:i + 6].unsqueeze(1), state)
    state = tuple(s.detach() for s in state)
    loss = F.mse_loss(head(out).squeeze(1), Y[i:i + 6]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"cell": cell.state_dict(), "head": head.state_dict(), "state": state}
""",
    "batch normalisation and running figures": """
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
running = torch.zeros(()); seen = []
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    running = 0.9 * running + 0.1 * loss.detach()
    seen.append(float(loss))
    if step == 25: optimizer.param_groups[0]["lr"] *= 0.5 if running > 0.1 else 0.9
result = {"model": model.state_dict(), "running": running, "seen": seen}
""",
    "own checkpoints and log file": """
import os
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
folder = os.path.dirname(os.path.abspath(sys.argv[-1])); best = float("inf")
log = open(os.path.join(folder, "log.txt"), "a")
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    log.write(f"{step} {loss.item()!r}\\n"); log.flush()
    if loss.item() < best:
        best = loss.item(); torch.save(model.state_dict(), os.path.join(folder, "best.pt"))
log.close()
result = {"model": model.state_dict(), "best": torch.load(os.path.join(folder, "best.pt")),
          "log": open(os.path.join(folder, "log.txt")).read()}
""",
    "weights without a module": """
w = torch.zeros(8, 1, requires_grad=True); b = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.Adam([w, b], lr=1e-2); average = w.detach().clone(); first = last = None
for step in range(40):
    i = torch.randint(0, 96, (8,)); loss = F.mse_loss(X[i] @ w + b, Y[i]); optimizer.zero_grad()
    loss.backward(); optimizer.step(); average.lerp_(w.detach(), 0.1); last = loss.detach()
    if step == 1: first = w.detach().clone()
result = {"w": w.detach(), "b": b.detach(), "average": average, "first": first, "last": last}
""",
    "everything inside functions and a class": """
class Lists(torch.nn.Sequential):  # methods of one's own, with less arguments than torch's
    def named_parameters(self): return list(super().named_parameters())
    def parameters(self): return [p for _, p in self.named_parameters()]
class Trainer:
    def __init__(self):
        self.model = Lists(*make_model()); self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.step, self.losses, self.ema = 0, [], 0.0
    def train_step(self, x, y):
        self.optimizer.zero_grad(); loss = F.mse_loss(self.model(x), y); loss.backward()
        for p in self.model.parameters(): p.grad.clamp_(-1, 1)
        self.optimizer.step(); self.step += 1
        self.ema = 0.9 * self.ema + 0.1 * loss.item(); self.losses.append(loss.detach())
    def fit(self):
        while self.step < 40:
            for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True): self.train_step(x, y)
def main():
    trainer = Trainer(); trainer.fit()
    return {"model": trainer.model.state_dict(), "ema": trainer.ema, "losses": torch.stack(trainer.losses)}
result = main()
""",
    "policy gradient": """
policy = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)); optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
baseline = 0.0
for step in range(40):
    state = X[torch.randint(0, 96, (8,))]
    dist = torch.distributions.Categorical(logits=policy(state)); action = dist.sample()
    reward = (action == (state[:, 0] > 0).long()).float(); baseline = 0.9 * baseline + 0.1 * reward.mean().item()
    loss = -(dist.log_prob(action) * (reward - baseline)).mean() - 0.01 * dist.entropy().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"policy": policy.state_dict(), "baseline": baseline}
""",
    "progress bar": """
from tqdm import tqdm
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
bar = tqdm(range(40))
for step in bar:
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    bar.set_postfix(loss=f"{loss.item():.4f}")
result = model.state_dict()
""",
    "variational autoencoder": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__(); self.enc = nn.Linear(8, 8); self.dec = nn.Linear(4, 8); self.calls = 0
    def forward(self, x):
        self.calls += 1
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar
model = VAE(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(40):
    x = X[torch.randint(0, 96, (8,))]
    out, mu, logvar = model(x)
    kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
    loss = F.mse_loss(out, x) + min(1.0, step / 20) * 0.1 * kl
    optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"model": model.state_dict(), "calls": model.calls}
""",
    "optimizer around another": """
class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner; self.count = 0
        super().__init__(inner.param_groups, {})
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]
    @torch.no_grad()
    def step(self):
        self.inner.step(); self.count += 1
        if self.count % 5 == 0:
            for p, slow in zip((p for g in self.param_groups for p in g["params"]), self.slow):
                slow.lerp_(p, 0.5); p.copy_(slow)
model = make_model(); optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2))
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"model": model.state_dict(), "slow": optimizer.slow, "count": optimizer.count}
""",
}


def script(style: str) -> str:
    """Returns the whole text of one style's script."""
    return PRELUDE + LOOP_STYLES[style] + ENDING
