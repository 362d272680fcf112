"""Loading that draws random numbers, but changes nothing else, is left out by itself."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

SETTINGS = ("checkpoint.every_steps=4", "checkpoint.background=false")

AUGMENTED = """
import time
class Augmented(Dataset):
    def __len__(self): return 90
    def __getitem__(self, i):
        time.sleep(0.0005)
        x = X[i] + 0.1 * torch.randn(8) + random.gauss(0, 0.1)
        if random.random() < 0.5: x = x.flip(0)
        return x + float(np.random.rand()), Y[i]
def collate(samples):
    x, y = zip(*samples); x = torch.stack(x)
    return x * torch.empty(len(x), 1).uniform_(0.9, 1.1), torch.stack(y)
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Augmented(), batch_size=8, shuffle=True, collate_fn=collate)
mixed = []
for epoch in range(4):
    for x, y in loader:
        share = float(np.random.beta(0.4, 0.4)); mixed.append(share)
        order = torch.randperm(len(x))
        x = share * x + (1 - share) * x[order]; y = share * y + (1 - share) * y[order]
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"model": model.state_dict(), "mixed": mixed}
"""


def test_augmentation_is_left_out_and_its_random_numbers_are_not(tmp_path: Path) -> None:
    text = PRELUDE + AUGMENTED + ENDING
    expected = train_plainly(tmp_path / "plain", text)

    killed = supervised(
        tmp_path / "killed",
        text,
        settings=SETTINGS,
        faults="[{kind: sigkill, step: 30}, {kind: sigkill, step: 37}]",
    )

    resumed = killed.events("resumed")
    assert [e["exactness"] for e in resumed] == ["exact", "exact"], resumed
    assert [e["from_step"] for e in resumed] == [28, 36]
    # All but those before the first step, the last 8, and the first of another length.
    assert [e["batches_left_out"] for e in resumed] == [28 - 1 - 8 - 1, 36 - 1 - 8 - 1]
    assert killed.found("loading needed") == []
    assert len(killed.found("recorded loss")) == 2
    assert differences(expected.result(), killed.result()) == []
