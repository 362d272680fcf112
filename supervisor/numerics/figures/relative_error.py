"""The relative error of a tensor against a reference."""

from __future__ import annotations

import torch


def relative_error(reference: torch.Tensor, low: torch.Tensor) -> float:
    """Returns the L2 norm of the difference over that of `reference` (over 1 where that is zero).

    Entries that are the same infinity, or NaN, in both are ignored; one in only one of them makes
    the error infinite.
    """
    expected, got = as_real(reference).double(), as_real(low).double()
    sound = torch.isfinite(expected) & torch.isfinite(got)
    same = (expected == got) | (expected.isnan() & got.isnan())
    if not bool((sound | same).all()):
        return float("inf")
    zero = torch.zeros_like(expected)
    norm = float(torch.linalg.vector_norm(torch.where(sound, expected, zero)))
    error = float(torch.linalg.vector_norm(torch.where(sound, got - expected, zero)))
    return error / norm if norm > 0 else error


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in FP32, or its own type if finer; complex numbers as pairs."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real if real.dtype == torch.float64 else real.float()
