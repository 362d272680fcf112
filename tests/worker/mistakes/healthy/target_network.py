"""Q-learning: a target network under no_grad, in the optimizer's model, copied at times."""
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

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.target = net(8, 2), net(8, 2)
        self.target.load_state_dict(self.online.state_dict())
    def forward(self, s, s2):
        with torch.no_grad():
            best = self.target(s2).amax(1)
        return self.online(s), best
agent = Agent(); opt = torch.optim.Adam(agent.parameters(), lr=1e-3)
for step in range(70):
    s, s2, a = torch.randn(32, 8), torch.randn(32, 8), torch.randint(2, (32, 1))
    q, best = agent(s, s2)
    loss = F.mse_loss(q.gather(1, a).squeeze(1), s[:, 0] + 0.9 * best)
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 25 == 24:
        agent.target.load_state_dict(agent.online.state_dict())
