"""A GAN: the generator's loss leaves gradients in the critic, cleared late."""
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

g, d = net(4, 8), net(8, 1)
og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
for step in range(70):
    loss_g = F.softplus(-d(g(torch.randn(32, 4)))).mean()
    og.zero_grad(); loss_g.backward(); og.step()
    fake = g(torch.randn(32, 4)).detach()
    loss_d = F.softplus(-d(torch.randn(32, 8) + 2)).mean() + F.softplus(d(fake)).mean()
    od.zero_grad(); loss_d.backward(); od.step()
