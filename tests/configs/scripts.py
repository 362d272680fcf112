"""Small real trainings, one of each kind that a preset is made for, as unmodified scripts."""

VAE = '''
import sys
import torch
from torch import nn

class VAE(nn.Module):
    """Four latent units for three factors. Argument 1: by how much the KL weight grows a step."""
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(32, 32)
        self.fc_mu, self.fc_logvar = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32))
    def forward(self, x):
        hidden = torch.tanh(self.encoder(x))
        mu, logvar = self.fc_mu(hidden), self.fc_logvar(hidden)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.decoder(z), mu, logvar

torch.manual_seed(0)
mixing = torch.randn(3, 32)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(420):
    x = torch.randn(64, 3) @ mixing + 0.3 * torch.randn(64, 32)
    out, mu, logvar = model(x)
    recon = (out - x).square().sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
    loss = recon + float(sys.argv[1]) ** max(0, step - 200) * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
'''

FP16 = '''
import sys
import torch
from torch import nn

"""A perceptron under a loss scaler. Argument 1: by how much its inputs grow a step, from 120 on."""
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=100)
true = torch.randn(16, 1) / 4
for step in range(260):
    x = torch.randn(64, 16)
    y = x @ true
    grown = x * float(sys.argv[1]) ** max(0, step - 120)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(grown)
        loss = (out.float() - y).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
'''
