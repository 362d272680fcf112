"""What a difference between two runs means, and what to do about it."""

from __future__ import annotations

from supervisor.analysis.verify.trail import Parting

_SEED = (
    "seed it at the top of the script (torch.manual_seed(0); random.seed(0); "
    "numpy.random.seed(0)), or here with --set seed=0"
)
_DETERMINISTIC = (
    "switch on torch.use_deterministic_algorithms(True) (on a GPU also "
    "CUBLAS_WORKSPACE_CONFIG=:4096:8, and torch.backends.cudnn.benchmark = False)"
)
_TRACK = (
    "give the object to supervisor.track(name=object): anything with state_dict and load_state_dict"
)

_BY_ITSELF = {
    "data": "two undisturbed runs saw different data: take the order from a seeded generator, not "
    "from the clock, the file system, a set or os.urandom; or " + _SEED,
    "operation": "two undisturbed runs on the same weights and data came out differently: an "
    "operation is not deterministic: " + _DETERMINISTIC,
    "schedule": "two undisturbed runs had different learning rates: the schedule must not depend "
    "on the clock",
    "steps": "two undisturbed runs made different numbers of steps: the end of the loop must not "
    "depend on the clock",
}
_BY_THE_BREAK = {
    "data": "the resumed script read different data: draw the order from torch's, NumPy's or "
    "Python's global generators or from the loader, or go through supervisor.batches(loader); what "
    "other sources (a stream, a file's position, another process) gave out cannot be read again",
    "hidden state": "the same batch on the same weights gave another result: the forward uses "
    "something that is neither a parameter, a buffer, a variable nor a global generator: "
    "keep it in a buffer, or " + _TRACK,
    "weights": "the weights were not put back as they were: build the model the same way whenever "
    "the script starts, and change weights only between forward and the next step",
    "optimizer": "the optimizer was not put back as it was: if it keeps state outside of "
    "optimizer.state, " + _TRACK,
    "rng": "a random generator stood elsewhere: do not draw from it in threads, in hooks or in "
    "between forward and backward in a way that depends on time",
    "scaler": "the gradient scaler was not put back as it was: use one torch.amp.GradScaler for "
    "the whole run",
    "schedule": "the learning rate was not the same: use a scheduler object of torch, or compute "
    "the rate from the step number; for a scheduler of your own, " + _TRACK,
    "tracked": "a tracked object was not put back as it was: its load_state_dict must restore all "
    "that its state_dict returns",
    "module": "a plain attribute of a module (a counter, a flag) was not the same: keep it in a "
    "buffer",
    "variable": "a tensor or array that a variable holds was not the same: keep it where "
    "it can be found again (a module, a plain variable), or " + _TRACK,
    "script": "a value that the script's Python holds was not the same: what it is made from (a "
    "place in C code, a file that changes, the clock) was not as it was; keep it in a plain "
    "variable, or " + _TRACK,
    "steps": "the resumed run made a different number of steps: the end of the loop must not "
    "depend on the clock or on files that an earlier attempt wrote",
}


def kind_of(parting: Parting, *, by_itself: bool) -> str:
    """Returns what differs in the user's words: the part, an ``operation`` or ``hidden state``.

    If loss or weights differ although data and state were the same a step before, the computation
    itself is nondeterministic.

    Args:
        parting: the first difference.
        by_itself: it was seen between two undisturbed runs.
    """
    if parting.what == "loss":
        return "operation" if by_itself else "hidden state"
    if by_itself and parting.step > 0 and parting.what in ("weights", "optimizer"):
        return "operation"
    return parting.what


def advise(parting: Parting, *, by_itself: bool) -> str:
    """Returns what to do about the first difference; arguments as for `kind_of`."""
    if by_itself and parting.step == 0:
        return f"two undisturbed runs began with different {parting.what}: {_SEED}"
    texts = _BY_ITSELF if by_itself else _BY_THE_BREAK
    kind = kind_of(parting, by_itself=by_itself)
    return texts.get(kind, f"two undisturbed runs differ: {_SEED}")
