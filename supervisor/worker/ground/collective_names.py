"""The namespaces of torch's operators in which ranks exchange something."""

from __future__ import annotations

IN_PLACE = "c10d"
"""What `torch.distributed` calls: writes into the tensors that it is given."""
FUNCTIONAL = frozenset(
    {"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor"}
)
"""Returns new tensors."""
COLLECTIVES = FUNCTIONAL | {IN_PLACE}
