"""BF16 weights with what is rounded away kept beside them."""
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

model = net().to(torch.bfloat16)
lost = [torch.zeros_like(p) for p in model.parameters()]
class Kahan(torch.optim.AdamW):
    def step(self):
        before = [p.detach().clone() for p in model.parameters()]
        super().step()
        with torch.no_grad():
            for p, b, c in zip(model.parameters(), before, lost):
                c.add_(p - b); p.copy_(b + c); c.sub_(p - b)
opt = Kahan(model.parameters(), lr=3e-4)
for step in range(70):
    x, y = batch()
    loss = F.cross_entropy(model(x.bfloat16()).float(), y)
    opt.zero_grad(); loss.backward(); opt.step()
