"""schedulefree: AdamW without a schedule, its modes of training and evaluation."""
import schedulefree
import torch

torch.manual_seed(0)
x = torch.randn(400, 10); y = x[:, :3].sum(1, keepdim=True)
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1)); opt = schedulefree.AdamWScheduleFree(net.parameters(), lr=1e-2, warmup_steps=10)
for epoch in range(6):
    net.train(); opt.train()
    for k in torch.randperm(400).split(25):
        loss = (net(x[k]) - y[k]).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
    net.eval(); opt.eval()
    with torch.no_grad(): print(epoch, loss.item(), (net(x) - y).pow(2).mean().item(), flush=True)
torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, "net.pt")
