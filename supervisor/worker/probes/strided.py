"""A part of a large tensor that stands for all of it."""

from __future__ import annotations

import torch


def strided(tensor: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns at most `limit` elements, evenly over `tensor`, as one dimension; a view if it can.

    The same for every tensor of a shape, so that a gradient and its second moment fit together.
    """
    flat = tensor.detach().reshape(-1)
    return flat if flat.numel() <= limit else flat[:: -(-flat.numel() // limit)]


def rows_of(tensor: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns the first rows of `tensor` that have at most `limit` elements together; one at least.

    Whole rows, because large activations sit at single positions of a sample.
    """
    tensor = tensor.detach()
    if tensor.numel() <= limit or tensor.dim() == 0:
        return tensor
    return tensor[: max(1, limit * tensor.shape[0] // tensor.numel())]
