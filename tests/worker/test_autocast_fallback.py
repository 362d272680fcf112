"""The FP32 fallback and an autocast context that the script keeps and enters again."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: the patch lasts as long as the process.
CODE = """
import types, torch
from supervisor.worker.regions.patches_regions import _patch_autocast

forced = [True]
session = types.SimpleNamespace(
    call_state=types.SimpleNamespace(active=True), enters_autocast=lambda: forced[0]
)
_patch_autocast(session)
context = torch.autocast("cpu", dtype=torch.bfloat16)
linear, x = torch.nn.Linear(4, 4), torch.randn(2, 4)

def dtype():
    with context:
        return linear(x).dtype

seen = [dtype()]
forced[0] = False
seen.append(dtype())
assert not torch.is_autocast_enabled("cpu")
print(*seen)
"""


def test_after_an_undo_the_same_context_has_its_precision_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=100, check=True
    )

    assert done.stdout.split() == ["torch.float32", "torch.bfloat16"]
