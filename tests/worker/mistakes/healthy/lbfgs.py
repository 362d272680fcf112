"""LBFGS: a closure clears and fills the gradients many times an update."""
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

model = net(8, 1); x = torch.randn(64, 8); y = x[:, :1].sin()
opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
def closure():
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss
for step in range(70):
    opt.step(closure)
