"""Random features: a layer that is never trained, its gradients left on, below one that is."""
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

features, head = nn.Linear(8, 64), nn.Linear(64, 3)
model = nn.Sequential(features, nn.Tanh(), head)
opt = torch.optim.Adam(head.parameters(), lr=1e-2)
for step in range(70):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
