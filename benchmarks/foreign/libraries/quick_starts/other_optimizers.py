"""pytorch_optimizer: Lion within Lookahead, then SAM, which steps twice."""
import torch
from pytorch_optimizer import SAM, Lion, Lookahead

torch.manual_seed(0)
x = torch.randn(400, 10); y = x[:, :3].sum(1, keepdim=True)
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)); opt = Lookahead(Lion(net.parameters(), lr=1e-3), k=5)
for epoch in range(4):
    for k in torch.randperm(400).split(25):
        loss = (net(x[k]) - y[k]).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
    print(epoch, loss.item(), flush=True)
opt = SAM(net.parameters(), torch.optim.SGD, lr=1e-2, momentum=0.9)
for epoch in range(3):
    for k in torch.randperm(400).split(25):
        loss = (net(x[k]) - y[k]).pow(2).mean(); loss.backward(); opt.first_step(zero_grad=True)
        (net(x[k]) - y[k]).pow(2).mean().backward(); opt.second_step(zero_grad=True)
    print(epoch, loss.item(), flush=True)
torch.save(net.state_dict(), "net.pt")
