"""Put on PYTHONPATH of a foreign script: seeds it, and notes what its optimizers hold in the end.

Most public scripts set no seed, and each has its own way of keeping its weights. The same file is
used for the plain run and for the supervised one, so that both can be compared.
"""

import atexit
import hashlib
import json
import os
import sys
import weakref
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

RESULT = os.environ.get("FOREIGN_RESULT", "")
STEPS = int(os.environ.get("FOREIGN_STEPS", "0"))
"""A script without an end of its own leaves after so many steps of its optimizers; 0 for never."""
SEED = 1234
KEPT = 64
"""How many optimizers are kept: scripts that make one an epoch make thousands."""


class _TorchArrives(MetaPathFinder):
    """Calls `_torch_is_here` when torch has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _torch_is_here(module)

        spec.loader.exec_module = exec_module
        return spec


def _torch_is_here(torch):
    import random

    random.seed(SEED)
    torch.manual_seed(SEED)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(SEED)
    from torch.optim import Optimizer

    seen = weakref.WeakKeyDictionary()
    kept = []
    build = Optimizer.__init__

    def noted(self, *args, **kwargs):
        build(self, *args, **kwargs)
        if self not in seen:
            seen[self] = True
            kept.append(self.param_groups)
            del kept[:-KEPT]

    Optimizer.__init__ = noted
    if STEPS:
        _leave_after(STEPS)
    process = os.getpid()  # children of the script have nothing to tell
    atexit.register(lambda: os.getpid() == process and _tell(kept))


def _leave_after(steps):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done = [0]

    def count(optimizer, args, kwargs):
        done[0] += 1
        if done[0] >= steps:
            sys.exit(0)

    register_optimizer_step_post_hook(count)


def _tell(kept):
    digests = []
    for groups in kept:
        digest = hashlib.sha256()
        for group in groups:
            for parameter in group["params"]:
                array = parameter.detach().cpu().contiguous().reshape(-1)
                digest.update(array.view(_bytes()).numpy().tobytes())
        digests.append(digest.hexdigest()[:16])
    with open(RESULT, "w") as file:
        json.dump(digests, file)


def _bytes():
    import torch

    return torch.uint8


if RESULT:
    sys.meta_path.insert(0, _TorchArrives())
