"""Small trainings that fail for a known cause at a known step."""

from __future__ import annotations

_TRAINING = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1); torch.set_num_threads(1)
X = torch.randn(800, 8); Y = (X[:, :1] * 2).sin()
{data}
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = {optimizer}
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle={shuffle})
log = open("log.txt", "w")
step = 0
for x, y in loader:
    {before}
    loss = F.mse_loss(model(x), y){term}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(step, file=log)
    step += 1
"""

_ADAM = "torch.optim.Adam(model.parameters(), lr=1e-2)"


def sick_script(
    *,
    data: str = "",
    before: str = "pass",
    term: str = "",
    shuffle: bool = False,
    optimizer: str = _ADAM,
) -> str:
    """Returns a training of 100 steps; see `_TRAINING` for what the arguments are put into."""
    return _TRAINING.format(
        data=data, optimizer=optimizer, shuffle=shuffle, before=before, term=term
    )


BAD_SAMPLE = sick_script(data="X[8 * 60 + 3] = float('nan')")
BAD_SCHEDULE = sick_script(before="if step == 60: optimizer.param_groups[0]['lr'] = 1.0")
EXTREME_RATE = sick_script(optimizer="torch.optim.SGD(model.parameters(), lr=1e6)")
OVERSIZED_WEIGHTS = sick_script(before="if step == 0: model[0].weight.data.mul_(1e30)")
OTHER_UNITS = sick_script(data="Y[8 * 60 :] *= 1e9")
SOUND = sick_script()
