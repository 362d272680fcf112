"""A graph network, its distances and attention, with a closure-free loop in main."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy as bce, log_softmax, nll_loss, softmax


class EdgeAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)

    def forward(self, h):
        scores = (self.q(h) @ self.k(h).T).half()
        return softmax(scores, dim=-1)  # planted: softmax-without-dtype

    def energy(self, h):
        return torch.log(torch.sum(torch.exp(self.q(h)), dim=-1))  # planted: logsumexp-by-hand

    def distances(self, pos):
        delta = pos[:, None] - pos[None]
        return torch.sum(delta**2, dim=-1).sqrt()  # planted: sqrt-at-zero


def link_loss(model, pairs, labels):
    with torch.autocast("cuda"):
        p = model(pairs).sigmoid()
        return bce(p, labels)  # planted: bce-under-autocast


def main():
    model = make_model()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.autograd.set_detect_anomaly(True)  # planted: anomaly-detection-on
    for epoch in range(200):
        model.train()
        out = softmax(model(graph.x), dim=1)
        loss = nll_loss(out[graph.train_mask], graph.y[graph.train_mask])  # planted: nll-without-log
        opt.zero_grad()
        loss.backward()
        opt.step()
        state = torch.load("teacher.pt", weights_only=False)  # planted: load-runs-code


if __name__ == "__main__":
    main()
