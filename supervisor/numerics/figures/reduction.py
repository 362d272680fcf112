"""The error of a sum whose running total is kept in a small format."""

from __future__ import annotations

import torch

from supervisor.numerics.figures.number_format import NumberFormat

MOST_ADDENDS = 4096
MOST_SUMS = 256
"""More sums, and longer ones, are sampled evenly: every addend is rounded one by one."""


def reduction_error(values: torch.Tensor, dim: int, target: NumberFormat) -> float:
    """Returns the relative error (L2 over all sums along `dim`) against FP64.

    Addends and running total are rounded to `target` after each addition, as in sums over devices
    or micro-batches in that format. Kernels with an FP32 total do better.

    Args:
        values: finite numbers.
    """
    addends = values.movedim(dim, 0).reshape(values.shape[dim], -1)
    addends = _sampled(_sampled(addends, 0, MOST_ADDENDS), 1, MOST_SUMS)
    total = torch.zeros_like(addends[0])
    for row in target.round(addends):
        total = target.round(total + row)
    exact = addends.double().sum(dim=0)
    norm = float(torch.linalg.vector_norm(exact))
    error = float(torch.linalg.vector_norm(total.double() - exact))
    return error / norm if norm > 0 else error


def _sampled(matrix: torch.Tensor, dim: int, most: int) -> torch.Tensor:
    size = matrix.shape[dim]
    if size <= most:
        return matrix
    picks = torch.linspace(0, size - 1, most, device=matrix.device, dtype=torch.float64).long()
    return matrix.index_select(dim, picks)
