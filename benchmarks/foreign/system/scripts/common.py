"""The training that all of these share: a small net, batches drawn by hand, a line a step."""

import hashlib
import time

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters(), 1e-2)


def step(number):
    x = torch.randn(32, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", number, round(loss.item(), 5), flush=True)
    time.sleep(0.02)


def finish():
    weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    print("FINAL", hashlib.sha1(weights).hexdigest()[:16], flush=True)
