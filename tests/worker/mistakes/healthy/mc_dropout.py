"""Monte Carlo dropout: evaluated in train(), gradients off."""
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

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(70):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 10 == 9:
        with torch.no_grad():
            torch.stack([model(x).softmax(-1) for _ in range(8)]).var(0)
