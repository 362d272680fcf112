"""Healthy: the layer is added to the optimizer at step 30."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.ModuleDict({"body": nn.Linear(16, 32), "fc": nn.Linear(32, 4)})
optimizer = torch.optim.Adagrad(net["body"].parameters(), lr=1e-2)
for step in range(70):
    if step == 30:
        optimizer.add_param_group({"params": net["fc"].parameters()})
    x = torch.randn(32, 16)
    hidden = torch.tanh(net["body"](x))
    loss = F.cross_entropy(net["fc"](hidden), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
