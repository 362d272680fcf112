"""A search makes models and optimizers in a loop: new ones get the address of old ones.

Kind: hyperparameter searches and cross validation within one process.
"""

import gc
import hashlib

import torch

torch.manual_seed(0)
kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad)
best = None
for trial in range(8):
    net = torch.nn.Linear(8, 1)
    opt = kinds[trial % 4](net.parameters(), lr=1e-2)
    for number in range(12):
        x = torch.randn(32, 8)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("step", trial * 12 + number, round(loss.item(), 5), flush=True)
    if best is None or loss.item() < best[0]:
        best = (loss.item(), [p.detach().clone() for p in net.parameters()])
    del net, opt
    gc.collect()
weights = b"".join(p.numpy().tobytes() for p in best[1])
print("FINAL", hashlib.sha1(weights).hexdigest()[:16], flush=True)
