"""What is trained, and by which optimizer."""

MODELS = {
    "two layers": "",
    "dropout": "",
    "batch normalisation": "",
    "counts its calls": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)
                self.calls, self.sizes = 0, collections.Counter()
            def forward(self, x):
                moment("forward"); self.calls += 1; self.sizes[len(x)] += 1
                return self.second(torch.relu(self.first(x)) * (1.0 if self.calls > 9 else 0.9))
    """,
    "running figures in a buffer": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)
                self.register_buffer("mean", torch.zeros(12)); self.last = None
            def forward(self, x):
                hidden = torch.relu(self.first(x)); moment("forward")
                if self.training: self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
                self.last = hidden.detach().max().item()
                return self.second(hidden - self.mean)
    """,
    "layers left out by chance": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)
                self.inner = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
            def forward(self, x):
                hidden = torch.relu(self.first(x))
                for layer in self.inner:
                    if not self.training or random.random() < 0.7: hidden = hidden + layer(hidden)
                moment("forward")
                return self.second(hidden) * float(1.0 + 0.01 * np.random.randn() * self.training)
    """,
    "recurrent, state carried over": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.cell, self.second = nn.Linear(8, 12), nn.GRUCell(12, 12), nn.Linear(12, 4)
                self.state = torch.zeros(1, 12)
            def forward(self, x):
                hidden = self.cell(self.first(x), self.state.expand(len(x), 12))
                moment("forward")
                if self.training and torch.is_grad_enabled(): self.state = hidden.detach().mean(0, keepdim=True)
                return self.second(hidden)
    """,
    "lazy layers": "",
    "generator of its own in forward": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)
                self.rng = np.random.default_rng(8)
            def forward(self, x):
                hidden = torch.relu(self.first(x))
                if self.training: hidden = hidden * float(self.rng.uniform(0.8, 1.2))
                return self.second(hidden)
    """,
}

MADE = {
    "two layers": "nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))",
    "dropout": "nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4))",
    "batch normalisation": "nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 4))",
    "lazy layers": "nn.Sequential(nn.LazyLinear(12), nn.ReLU(), nn.LazyLinear(4))",
}
"""How a model is made; a class `Net` where nothing is said."""

OPTIMIZERS = {
    "SGD with momentum": "torch.optim.SGD($model.parameters(), lr=0.05, momentum=0.9)",
    "Adam": "torch.optim.Adam($model.parameters(), lr=0.02)",
    "AdamW in groups": """torch.optim.AdamW([
        {"params": [p for p in $model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in $model.parameters() if p.dim() <= 1], "weight_decay": 0.0}], lr=0.02)""",
    "RMSprop": "torch.optim.RMSprop($model.parameters(), lr=0.01)",
    "its own": "SignDescent($model.parameters(), lr=0.01)",
}
