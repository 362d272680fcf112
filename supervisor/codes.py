"""The codes that stand in records and events, where a sentence would have to be parsed otherwise.

A reader that does not know a code (of another version, or of a damaged file) has None for it.
"""

from __future__ import annotations

import enum


class Severity(str, enum.Enum):
    """How bad an alert is, worst first."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Cause(str, enum.Enum):
    """What kind of numerical trouble it is; policies choose treatment by it."""

    NONFINITE = "nonfinite"
    SPIKE = "spike"
    DIVERGENCE = "divergence"
    REWARD = "reward"
    """A policy's reward has fallen: treated only where a policy file names it."""
    LOSS_SCALE = "loss_scale"
    COLLAPSE = "collapse"
    DEAD_UNITS = "dead_units"
    PLATEAU = "plateau"
    LEARNING_RATE = "learning_rate"
    RESOURCES = "resources"
    OTHER = "other"


class Subject(str, enum.Enum):
    """The figure that a message or reason speaks of: it begins with ``the`` and this figure."""

    LOSS = "loss"
    GRADIENT = "gradient_norm"
    LEARNING_RATE = "learning_rate"


class DecisionSource(str, enum.Enum):
    """Who chose a treatment."""

    POLICY = "policy"
    CASE_LIBRARY = "case library"
    """It helped in similar cases."""
    ORDER = "order"
    """The parent, for this attempt: what it answers happened in an earlier one."""
    PROOF = "proof"
    """The state was shown to be corrupted: whether healing it helped is not left to be seen."""


class ActionOutcome(str, enum.Enum):
    """What became of an action: at once, or `Phase.VERIFIED`."""

    APPLIED = "applied"
    REFUSED = "refused"
    WOULD_HAVE = "would_have"
    """The policy only observes."""
    HELPED = "helped"
    FAILED = "failed"


class Phase(str, enum.Enum):
    """Of an action: without one it tells that the action was taken."""

    VERIFIED = "verified"
    """Its outcome was found out later."""


class Found(str, enum.Enum):
    """What was noticed about the training or its state (event ``state_found``)."""

    ANNOUNCED = "announced change"
    """The script called `supervisor.announce`."""
    ANOTHER_TRAINING = "another training"
    ANOTHER_LEVEL = "another level"
    """Older weights have shown that weights are not to blame (`ladder.trial_steps`, or after a
    rollback `ladder.rollback_evaluation`)."""
    TRIAL_STEP = "trial step"
    """What it has said, where that is not another level (`ladder.trial_steps`)."""
    OTHER_DATA = "other data"
    """The loss rises with inputs of another distribution (`detectors.statistics.other_data`)."""
    RATE_TEST = "rate test"
    """The script looks for a learning rate (`detectors.statistics.rate_test`)."""
    SCRIPT_CHANGE = "script change"
    """The loss rises with what it does to weights (`detectors.statistics.script_change`)."""
    REINFORCEMENT = "reinforcement learning"
    """Recognised by `prediction.moving_objective`: no losses of the run can be compared."""
    SEVERAL_RANKS = "several ranks"
    FILES_SET_ASIDE = "files set aside"
    LOADING_NEEDED = "loading needed"
    """A replay begins again, with all batches loaded."""
    RECORDED_LOSS = "recorded loss"
    """The first step after a resume has the loss that it had before the kill."""
    RETRY_ASKED = "exact retry asked"
    """The same steps are to be computed again, before a treatment that costs steps."""
    RETRY_REPEATED = "exact retry repeated"
    """They came out the same, to the bit."""
    RETRY_UNDECIDED = "exact retry undecided"
    LOOKS = "looks"
    """What the looks inside the model have cost."""
    MEMORY = "memory"
    """How many copies of the state will be held, or that there is no room for any."""
    COPIES_HELD = "copies held"
    """From here on this process holds another number (`count`) of copies of the state in memory."""
    REPORTS_ITSELF = "reports itself"
    """The script tells Kubeflow Trainer of its progress, so that the supervisor does not."""
    COMPUTE_CHECK = "compute check"
    """How much was calculated twice, and what it has cost."""


class Warned(str, enum.Enum):
    """Of what a warning tells, where readers count on it."""

    ANOTHER_LOSS = "another loss"
    """A step after a resume has another loss than before the kill."""
    BEGAN_AGAIN = "began again"
    """The training began from nothing although there was a checkpoint."""
    NOT_SAVED = "checkpoint not saved"
    NOT_HEALED = "rank not healed"
    """A killed rank did not come back alone: all ranks were started again."""
    DIRECTORY_GONE = "run directory gone"
    PART_OFF = "part switched off"
    NOT_WRITTEN = "files not written"
    """Something of the run's own record is missing, because the disk refused it for too long."""
    DAMAGED = "damaged file"
    SUSPECT_HARDWARE = "suspect hardware"
    """State was corrupted more than once, or trouble did not come again when it was repeated."""


class Exactness(str, enum.Enum):
    """Whether a resumed training is the one that was broken off, to the bit."""

    EXACT = "exact"
    APPROXIMATE = "approximate"


class ExitCause(str, enum.Enum):
    """Why a worker process ended (field ``cause`` of the event ``worker_exited``)."""

    COMPLETED = "completed"
    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    KILLED = "killed"
    HANG = "hang"
    NONFINITE = "nonfinite"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    USER_ERROR = "user_error"


class OutsideCause(str, enum.Enum):
    """Why a script failed for which neither it nor its data are to blame."""

    DISK = "disk"
    """Full, over quota, read-only, failing or gone."""
    MEMORY = "memory"
    """Of the host."""
    LIMIT = "limit"
    """Of open files or processes."""
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    SIGNAL = "signal"
    DEVICE = "device"
    """NVML has seen its hardware fail."""
    UNSEEN = "unseen"
    """No exception was seen."""


class ExitSign(str, enum.Enum):
    """What else is known of the way a worker ended, beside its `ExitCause`."""

    TREATMENT = "treatment"
    """The ladder asked for a restart: nothing had failed."""
    EXACT_RETRY = "exact_retry"
    """The worker asks that the same steps are computed again."""
    OWN_SIGNAL = "own_signal"
    """The process sent itself the signal that ended it."""
    OWN_EXIT = "own_exit"
    """The script ended itself with ``sys.exit``."""
    MISTAKE = "mistake"
    """A silent mistake of the script was told, and ``mistakes.stop`` is on."""
    LOADER_DIED = "loader_died"
    FAILING_DEVICE = "failing_device"
    """NVML has seen the hardware of a device fail, and the end looks like it."""
    SUPERVISOR_DIED = "supervisor_died"
    """And the worker with it."""
    NO_SPACE = "no_space"
    FILE_TOO_LARGE = "file_too_large"
    QUOTA_EXCEEDED = "quota_exceeded"
