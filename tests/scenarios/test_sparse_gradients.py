"""Embeddings with sparse gradients, whose optimizers take no others."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

SCRIPT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8, sparse=True)
        self.bags = nn.EmbeddingBag(20, 8, sparse=True)
        self.head = nn.Linear(16, 1)
    def forward(self, i): return self.head(torch.cat([self.words(i[:, 0]), self.bags(i)], 1))
net = Net(); tokens = (X * 3 + 10).clamp(0, 19).long(); rows = []
others = torch.optim.Adagrad(net.head.parameters(), lr=0.1)
for epoch in range(3):
    embeddings = [net.words.weight, net.bags.weight]
    optimizer = torch.optim.SparseAdam(embeddings, lr=0.05)
    for i in torch.randperm(96).split(8):
        loss = F.mse_loss(net(tokens[i]), Y[i])
        optimizer.zero_grad(); others.zero_grad(); loss.backward()
        rows.append(net.words.weight.grad.coalesce().values().norm().item())
        net.words.weight.grad = (net.words.weight.grad * 0.5).coalesce()
        optimizer.step(); others.step()
result = {**net.state_dict(), "rows": torch.tensor(rows)}
"""


def test_two_kills_leave_the_weights_of_plain_python(tmp_path: Path) -> None:
    text = PRELUDE + SCRIPT + ENDING

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=("checkpoint.every_steps=5", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 8, moment: backward}, {kind: sigkill, step: 28}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), expected.stderr + ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact", "exact"]
    assert differences(expected.result(), ended.result()) == []
