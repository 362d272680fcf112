"""SAM: two backwards for one update, the gradients cleared between them."""
import copy
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
def net(i=8, o=3, h=32):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, o))
def batch(n=32):
    x = torch.randn(n, 8)
    return x, (x[:, 0] > 0).long()

model = net(); opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(70):
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        moves = [p.grad * 0.05 / (norm + 1e-12) for p in model.parameters()]
        for p, m in zip(model.parameters(), moves):
            p.add_(m)
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, m in zip(model.parameters(), moves):
            p.sub_(m)
    opt.step(); opt.zero_grad()
