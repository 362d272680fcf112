"""A low-rank adaptation of a layer that was drawn here, its gradients left on."""
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

class LowRank(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(4, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, 4))
    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T
model = nn.Sequential(LowRank(nn.Linear(8, 32)), nn.ReLU(), LowRank(nn.Linear(32, 3)))
opt = torch.optim.AdamW([p for n, p in model.named_parameters() if "base" not in n], lr=1e-2)
for step in range(70):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
