"""What clipping returns where there is nothing to clip."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def no_norm(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns 0 as the norm of all gradients, of the kind that clipping `parameters` returns: of
    DTensors (FSDP2, tensor parallelism) it is one, which a script asks for its `full_tensor`."""
    if not parameters:
        return torch.zeros(())
    zero = torch.zeros((), device=parameters[0].device)
    mesh = getattr(parameters[0], "device_mesh", None)
    if mesh is None:
        return zero
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(zero, mesh, [Replicate()] * mesh.ndim, run_check=False)
