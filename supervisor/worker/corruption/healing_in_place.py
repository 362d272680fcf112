"""Puts a few elements back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor


def heal(findings: Sequence[CorruptedTensor]) -> None:
    """Gives corrupted elements the values of the last look. Moments of one parameter belong
    together, so all of them go back at such a place.

    Torch's counters of writes stay as they are: a graph of the script's keeps working.
    """
    with outside_autograd():
        for finding in findings:
            for live, kept in ((finding.live, finding.kept), *finding.siblings):
                places = torch.tensor(finding.places, device=live.device)
                values = kept.reshape(-1)[places]
                target = live.data
                if target.is_contiguous():
                    target.view(-1)[places] = values
                else:
                    whole = target.reshape(-1)
                    whole[places] = values
                    target.copy_(whole.view(target.shape))
