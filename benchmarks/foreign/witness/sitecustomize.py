"""Put on PYTHONPATH of a foreign script: seeds it, and notes what its optimizers hold in the end.

Most public scripts set no seed, and each has its own way of keeping its weights. The same file is
used for the plain run and for the supervised one, so that both can be compared.
"""

import atexit
import gc
import hashlib
import itertools
import json
import os
import secrets
import signal
import sys
import weakref
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

RESULT = os.environ.get("FOREIGN_RESULT", "")
STEPS = int(os.environ.get("FOREIGN_STEPS", "0"))
"""A script without an end of its own leaves after so many steps of its optimizers; 0 for never."""
SEED = 1234
secrets.randbits = lambda bits: os.urandom(bits // 8) and SEED % (1 << bits)
"""Of a generator of NumPy without a seed, as those of gym: drawn as ever, but always the same."""
KILL_IN_SAVE = int(os.environ.get("FOREIGN_KILL_IN_SAVE", "0"))
"""Number of the save in which the process is killed, half a file written; 0 for never."""


class _TorchArrives(MetaPathFinder):
    """Calls `_torch_is_here` when torch has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            if self in sys.meta_path:  # libraries look for torch before they import it
                sys.meta_path.remove(self)
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
    except ImportError:  # then there is nothing to seed
        pass
    else:
        numpy.random.seed(SEED)
    kept = _keep_what_optimizers_hold()
    _watch_saves(torch)
    if STEPS:
        _leave_after(STEPS)
    process = os.getpid()  # children of the script have nothing to tell
    atexit.register(lambda: os.getpid() == process and _tell(kept))


def _keep_what_optimizers_hold():
    """Returns the parameter groups of every optimizer that was alive at the last step of any.

    Those of an optimizer that was dropped before are let go: what it once held, nothing of the
    script can reach, and a resumed run need not have trained it again.
    """
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook

    kept, dropped = {}, []
    build = Optimizer.__init__

    def noted(self, *args, **kwargs):
        build(self, *args, **kwargs)
        number = next(numbers)
        if self not in seen:
            seen[self] = number
            kept[number] = self.param_groups
            weakref.finalize(self, dropped.append, number).atexit = False

    looked = [0]

    def let_go(optimizer, args, kwargs):
        if len(kept) > 1 and max(kept) != looked[0]:
            looked[0] = max(kept)  # a new one: when an earlier one's cycle goes is chance
            gc.collect()
        while dropped:
            kept.pop(dropped.pop(), None)

    seen = weakref.WeakKeyDictionary()
    numbers = itertools.count()
    Optimizer.__init__ = noted
    register_optimizer_step_post_hook(let_go)
    return kept


def _leave_after(steps):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done = [0]

    def count(optimizer, args, kwargs):
        done[0] += 1
        if done[0] >= steps:
            sys.exit(0)

    register_optimizer_step_post_hook(count)


_saves = [0]
_open = os.open  # before anybody watches it: the mark is none of the script's files


def _watch_saves(torch):
    """Counts files that the script opens for writing or saves by torch, in its own folder."""
    home, save = os.path.realpath(os.getcwd()), torch.save

    def is_own(path):
        if not isinstance(path, (str, os.PathLike)):
            return False
        path = os.path.relpath(os.path.realpath(path), home)
        return not path.startswith(("..", "run" + os.sep, "__pycache__"))

    def struck(path, text):
        _saves[0] += 1
        if _saves[0] == KILL_IN_SAVE and not os.path.exists(RESULT + ".killed"):
            _open(RESULT + ".killed", os.O_CREAT | os.O_WRONLY)
            if text is not None:
                number = _open(path, os.O_CREAT | os.O_WRONLY | text)
                os.write(number, b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(value, path, *args, **kwargs):
        save(value, path, *args, **kwargs)
        if is_own(path):
            if _saves[0] + 1 == KILL_IN_SAVE and not os.path.exists(RESULT + ".killed"):
                os.truncate(path, os.path.getsize(path) // 2)
            struck(path, None)

    def opened(event, args):
        if event != "open" or not isinstance(args[1], str) or args[1][:1] not in "wax":
            return
        if is_own(args[0]) and os.getpid() == process:
            struck(args[0], os.O_APPEND if "a" in args[1] else os.O_TRUNC)

    process = os.getpid()
    torch.save = watched
    sys.addaudithook(opened)


def _tell(kept):
    digests = []
    for groups in kept.values():
        digest = hashlib.sha256()
        for group in groups:
            for parameter in group["params"]:
                own = getattr(parameter, "to_local", lambda p=parameter: p)()  # of a sharded one
                array = own.detach().cpu().contiguous().reshape(-1)
                digest.update(array.view(_bytes()).numpy().tobytes())
        digests.append(digest.hexdigest()[:16])
    path = f"{RESULT}.rank{os.environ.get('RANK', '0')}"
    if not digests and os.path.exists(path):
        return  # torchrun's own process
    with open(path, "w") as file:
        json.dump({"weights": digests, "saves": _saves[0]}, file)


def _bytes():
    import torch

    return torch.uint8


if RESULT:
    sys.meta_path.insert(0, _TorchArrives())
