"""The schemas of a config (what to watch, how to run) and of a policy (what to do about trouble).

Every field is documented under it; `supervisor configs` and docs/configuration.md show the same.
`PolicySettings`, what to do about trouble, is the schema of a policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass
class CheckpointSettings:
    every_steps: Optional[int] = None  # noqa: UP045  (OmegaConf reads Optional on Python 3.10)
    """Save every so many steps. None: by time, see `max_overhead` and `every_s`."""
    every_s: Optional[float] = None  # noqa: UP045
    """Save every so many seconds. None: sqrt(2 x cost x MTBF) (Young, CACM 1974) within limits."""
    max_overhead: float = 0.01
    """Share of the run's time that checkpoints and snapshots may cost the training."""
    mtbf_s: float = 14400.0
    """Assumed mean time between failures, until some were seen: then the time that this run has
    trained between them, and `max_overhead` does not bound the interval any more."""
    min_interval_s: float = 5.0
    """Never more often than this by time alone; a risky step may ask for one earlier."""
    max_interval_s: float = 900.0
    """Never less often than this."""
    keep_last: int = 3
    """Newest checkpoints kept; beside them, always, the newest stable one and the one that will be
    stable next."""
    stable_after_steps: int = 50
    """Healthy steps that must follow before a checkpoint counts as stable."""
    background: bool = True
    """Write to disk in a thread; the training waits for the copy in memory alone."""
    min_free_gib: float = 0.5
    """Disk that must stay free after a save; warned about from three times that on."""


@dataclass
class SnapshotSettings:
    enabled: bool = True
    """Keep copies of the state in memory, for a rollback without a restart."""
    depths: list[int] = field(default_factory=lambda: [10, 50])
    """About how many steps back the kept copies lie. For what began longer ago, some 300 steps, a
    checkpoint serves: it costs no memory."""
    every_steps: Optional[int] = None  # noqa: UP045
    """Copy every so many steps. None: as often as the budget allows that snapshots, with the check
    for corruption before each, and exit copies share: a quarter of `checkpoint.max_overhead` and
    `parting.max_overhead`. A young run copies when half as long again, for 0.1 s beyond that."""
    max_gib: float = 8.0
    """Memory that these copies may take together; fewer are kept when they are larger."""
    max_share: float = 0.25
    """Share of the free memory that all copies of the state may take, the one that is being written
    and those beside the processes of ranks among them; free is what the host and each control group
    leave, less what the training takes at its peak, for each rank its part. A quarter: what is free
    at one moment is not at the next (another process, longer batches, a second loader), and files
    are read and written through it."""


@dataclass
class ExitCheckpointSettings:
    enabled: bool = True
    """Keep the newest state in memory and write it when the process fails or is ended: an
    exception, no more memory, SIGTERM between two boundaries, a hang that SIGTERM ends; with
    several ranks also SIGKILL of any of them."""
    every_steps: Optional[int] = None  # noqa: UP045
    """Keep it at every so many steps. None: as often as the budget allows that it shares with
    snapshots."""
    max_overhead: float = 0.0025
    """Share of the run's time that this adds to the budget: a tenth of it is a tenth as often."""


@dataclass
class WatchdogSettings:
    hang_timeout_s: Optional[float] = None  # noqa: UP045
    """No step for so long is a hang. None: max(60 s, 10 x the 99th percentile of step times)."""
    first_step_timeout_s: float = 1800.0
    """Until the first step: imports, data, compilation. Later attempts: see docs/processes.md."""
    grace_s: float = 30.0
    """After SIGTERM, time for a checkpoint and a clean end before SIGKILL."""
    stack_dumps: int = 2
    """Dumps of all stacks before a hung worker is ended, `stack_interval_s` apart."""
    stack_interval_s: float = 5.0
    idle_timeout_s: float = 1800.0
    """As long where no training was under way, and ten times where a process of the script's
    computes: uploads of a run's files took up to 20 minutes (wandb/wandb#4441)."""


@dataclass
class PreemptionSettings:
    signals: list[str] = field(
        default_factory=lambda: ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"]
    )
    """Signals that ask the run to end with a checkpoint (75), or are left to a script that handles
    them. Of these five, one that is not named is ignored."""
    watch: Optional[str] = None  # noqa: UP045
    """What tells that the machine will be taken: a shell command that ends with 0 then, or
    ``file:PATH`` for a file that appears."""
    every_s: float = 5.0
    """Between two looks at `watch`: clouds give notice 30 to 120 s before."""
    ends_at: Optional[float] = None  # noqa: UP045
    """Time limit of the job, in unix seconds. None: SLURM_JOB_END_TIME, where SLURM sets it."""
    leave_before_s: float = 60.0
    """The run ends with a checkpoint so long before the time limit: twice `watchdog.grace_s`."""


@dataclass
class RestartSettings:
    crash_limit: int = 3
    """Crashes without progress until the run is given up."""
    backoff_s: float = 1.0
    """First wait before a new attempt; doubles up to `backoff_max_s`, +-20 %."""
    backoff_max_s: float = 60.0
    progress_steps: int = 50
    """New steps beyond the furthest so far that count as progress and reset the crash count."""
    careful_lr_factor: float = 0.5
    """After numerical trouble a new attempt begins with this learning-rate factor."""
    careful_steps: int = 50
    healing: str = "off"
    """Of several ranks on one node, one that is killed comes back alone: auto, on or off
    (docs/ranks.md)."""
    standby: bool = False
    """With `healing`: a process waits with torch imported (0.2 GiB) to become the killed rank."""

    @property
    def heals(self) -> bool:
        """Whether that is wanted; YAML takes ``on`` for true."""
        return self.healing.lower() in ("auto", "on", "true")


@dataclass
class CaptureSettings:
    enabled: bool = True
    """Save the batch of an anomalous step."""
    budget_mib: float = 200.0
    """Disk for captured batches; the newest and the worst are kept."""


@dataclass
class ProbeSettings:
    enabled: bool = True
    """Look inside the model (activations, attention, Adam's update, layers) at some steps."""
    max_overhead: float = 0.002
    """Share of the run's time that the looks may take; their number follows from it."""
    every_steps: Optional[int] = None  # noqa: UP045
    """Look at every so many steps instead, whatever it costs."""


@dataclass
class ComputeCheckSettings:
    enabled: bool = False
    """Calculate each operator of some steps twice, and compare to the bit (docs/corruption.md)."""
    max_overhead: float = 0.01
    """Share of the run's time that this may take; the number of steps follows from it."""
    every_steps: Optional[int] = None  # noqa: UP045
    """Check every so many steps instead, whatever it costs."""


@dataclass
class FastForwardSettings:
    enabled: bool = True
    """Resume unmodified scripts exactly, by running their loop without the training."""
    fallbacks: list[str] = field(default_factory=lambda: ["approximate", "start"])
    """What is tried, in this order, when a script ends before its fast-forward arrives:
    approximately (state put back, loop from its top); from the start, which also comes first where
    the checkpoint has fewer steps than `restart.progress_steps`."""
    tape_budget_mib: float = 1024.0
    """Disk for what a fast-forward needs to know; past it a resume is approximate."""
    reads_budget_mib: float = 256.0
    """Of whole tensors that the script reads as arrays (logits of an evaluation), kept compressed
    in one attempt: some 5 s of compressing. Past it, such a value must come out the same without
    the training, else a resume is approximate."""
    skip_loading: Optional[bool] = None  # noqa: UP045
    """Leave out loading in a fast-forward. None: where watching it showed that it changes nothing.
    True: everywhere, on your word; false: nowhere."""


@dataclass
class ReportSettings:
    enabled: bool = True
    plots: bool = True
    picture_every_steps: Optional[int] = None  # noqa: UP045
    """Draw `overview.png` and `observed.png` every so many steps while the run goes on, in an idle
    process for 5 % of one core at most. None: at the end alone."""


@dataclass
class LimitSettings:
    """How much is written of what may come without end; what is left out is counted and said."""

    log_mib: float = 64.0
    """Output kept of one attempt, its beginning and its end: a week of one line a second."""
    alerts_at_once: int = 20
    """Alerts of one detector and kind that are written one by one: an incident has fewer."""
    treatments_at_once: int = 200
    """Treatments of one name and cause that are written one by one: more are no single cure."""
    every_steps: int = 500
    """After these one in so many steps is written, with the number left out: 2,000 in a million."""
    stdin_mib: float = 64.0
    """Of a pipe, what the script reads from standard input is kept for later attempts up to this: a
    million lines of a few numbers each."""


NOTICE_EVENTS = (
    "treated",
    "restart",
    "hang",
    "gave_up",
    "preempted",
    "completed",
    "sick",
    "mistake",
)
HEALINGS = ("auto", "on", "off")
"""Of `RestartSettings.healing`."""
SECURITIES = ("none", "starttls", "tls")


@dataclass
class EmailSettings:
    """Notices by mail; no recipients: none."""

    recipients: list[str] = field(default_factory=list)
    sender: str = ""
    """Empty: the first recipient."""
    host: str = ""
    port: int = 587
    security: str = "starttls"
    """How the connection is kept secret: starttls, tls or none."""
    user: str = ""
    password: str = ""
    """``env:NAME`` or ``file:PATH``."""


@dataclass
class NotifySettings:
    """Who is told what happens, by the parent (docs/notifications.md)."""

    webhook: str = ""
    """Address that gets a JSON document by POST; ``env:NAME`` or ``file:PATH`` if it is secret."""
    slack: str = ""
    """``env:NAME`` or ``file:PATH`` of the address; `discord` and `teams` likewise."""
    discord: str = ""
    teams: str = ""
    email: EmailSettings = field(default_factory=EmailSettings)
    command: str = ""
    """A shell line that gets the JSON on standard input."""
    events: list[str] = field(default_factory=lambda: list(NOTICE_EVENTS))
    sick_after_s: float = 600.0
    """The risk has been in alarm for so long: one notice. Ten minutes are more than a
    treatment and its verification take on steps of seconds."""
    at_least_s: float = 60.0
    """Between two notices of one event; what comes sooner is counted in the next. The ends of a run
    are always told."""


@dataclass
class LogSettings:
    """Programs into which the steps are written while the run goes on (docs/logs.md)."""

    tensorboard: bool = False
    """Scalars in ``RUN/tensorboard``, one folder for all attempts, no step twice."""
    wandb: str = ""
    """The project of Weights & Biases; one run for all attempts."""
    mlflow: str = ""
    """MLflow's tracking address, as ``sqlite:///mlflow.db``; one run for all attempts."""
    wandb_of_script: bool = False
    """Sets ``WANDB_RUN_ID`` and ``WANDB_RESUME`` for the script, so that what it logs itself stays
    one run after a restart. Not for scripts that begin several runs of their own."""


@dataclass
class MistakeSettings:
    enabled: bool = True
    """Look for silent training mistakes in the first updates (docs/mistakes.md)."""
    on_purpose: list[str] = field(default_factory=list)
    """Kinds that this script means, which are not told: ``[trained_by_nothing]``."""
    stop: bool = False
    """End the run where one is told, with exit code 70 and a checkpoint; it can be resumed."""


LATE_READS = ("auto", "on", "off")


@dataclass
class DeviceSettings:
    late_reads: str = "auto"
    """Take in a step's numbers one step later, so that nothing waits for the device: ``auto`` where
    tensors are on an accelerator, ``on`` also on the CPU (for tests), ``off`` nowhere."""


@dataclass
class RunSettings:
    """A whole config."""

    name: str = "default"
    description: str = ""
    seed: Optional[int] = None  # noqa: UP045
    """Seeds Python, NumPy and torch before the script starts. None leaves the script alone."""
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    parting: ExitCheckpointSettings = field(default_factory=ExitCheckpointSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    preemption: PreemptionSettings = field(default_factory=PreemptionSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    probes: ProbeSettings = field(default_factory=ProbeSettings)
    compute_check: ComputeCheckSettings = field(default_factory=ComputeCheckSettings)
    mistakes: MistakeSettings = field(default_factory=MistakeSettings)
    device: DeviceSettings = field(default_factory=DeviceSettings)
    fast_forward: FastForwardSettings = field(default_factory=FastForwardSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    log: LogSettings = field(default_factory=LogSettings)
    metrics_port: Optional[int] = None  # noqa: UP045
    """Serve step, loss, risk and more for Prometheus at this port; 0: a free one."""
    metrics_address: str = "127.0.0.1"
    """Where `metrics_port` listens: this machine alone, unless another address is given."""
    metrics_textfile: str = ""
    """Write the same to this ``.prom`` file, for node_exporter's textfile collector."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    detectors: dict[str, Any] = field(default_factory=dict)
    """Detector name → its settings, or null to switch it off; `class: dotted.Path` adds one."""
    alert_handlers: list[str] = field(default_factory=list)
    """Dotted paths of functions called with each Alert."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """Faults to inject, for drills and tests: ``{kind: sigkill, step: 90}``."""
    in_environment: Optional[bool] = None  # noqa: UP045
    """The data come from an environment that the model acts in: loss and gradient are no evidence
    unless they are not finite. None: where that is recognised (`prediction.moving_objective`)."""
    observed_max_gib: float = 1.0
    """Disk for observed values beyond the first 16 names of a rank; behind half of it they are kept
    of every fourth step, then more seldom (256 names: every step of the first 85,000)."""
    keep_background: bool = False
    """Processes that a completed script left running live on, as with plain python. Otherwise they
    end with it, as after every other attempt: they may hold its GPU, its port or its files."""
    stop_after_steps: Optional[int] = None  # noqa: UP045
    """End the run as completed after so many steps, for trials. None: the script decides."""
    trail: bool = False
    """Write digests of the whole state at every step (`verify`); slow."""


@dataclass
class RungSettings:
    at: Optional[float] = None  # noqa: UP045
    """Risk from which this rung applies; one that treats, never below `alarm_threshold`. None: from
    `warn_threshold` on if it only saves, else from `alarm_threshold` on."""
    actions: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    """Only for these causes; empty = all."""


@dataclass
class GuardSettings:
    """Before the update: what must not reach the weights."""

    skip_nonfinite: bool = True
    """Leave out an update whose loss or gradient is NaN or infinite."""
    skip_spike: bool = True
    """Leave out an update whose gradient is far beyond the recent and all of the first ones."""
    spike_factor: float = 10.0
    """Gradient norm that many times the largest usual ones is absurd, if it is beyond the first."""
    rollback_after_skips: int = 3
    """So many skipped updates within `skip_window` steps: the weights themselves are sick."""
    skip_window: int = 10
    false_start: bool = True
    """A run that its first updates made far worse starts once more, with a tenth of its rate."""
    hot_start: bool = False
    """A run that has learned nothing because its rate is far too high starts once more, too."""
    rate_leap: bool = True
    """A rate that leaps beyond all earlier ones and does harm is held at the one before."""
    trial_step: bool = True
    """Before a loss that leaps and stays is rolled back: one step is computed with older weights,
    too, which shows whether the weights are to blame."""


@dataclass
class BudgetSettings:
    per_hour: int = 30
    """Treatments (not checkpoints, not skips) in an hour; more: the next rung, then stop."""
    per_run: int = 200
    max_rollbacks: int = 8
    """Rollbacks without `healthy_steps` between them until the run is restarted or stopped."""


@dataclass
class PolicySettings:
    """A whole policy: what to do about trouble."""

    name: str = "default"
    description: str = ""
    observe_only: bool = False
    """Change nothing; say what would have been done."""
    alarm_threshold: float = 0.5
    warn_threshold: float = 0.3
    guard: GuardSettings = field(default_factory=GuardSettings)
    rungs: list[RungSettings] = field(default_factory=list)
    by_cause: dict[str, list[str]] = field(default_factory=dict)
    """Cause → actions tried in this order, mildest first, before the rungs' own. An empty list:
    this cause is reported and nothing is done; the guard alone still leaves updates out."""
    exact_retry: bool = False
    """Before a rollback, a restart or a stop: go back exactly to a checkpoint from before the
    trouble and compute the same steps again. What does not come again was the machine's fault."""
    case_library: bool = True
    """Try first what helped in similar cases of earlier runs (`supervisor cases`)."""
    lr_factor: float = 0.5
    lr_factor_min: float = 0.05
    lr_rewarm_steps: int = 50
    """After an undo the learning-rate factor returns to 1 over so many steps."""
    clip_factor: float = 0.5
    cooldown_steps: int = 20
    """Steps after a treatment until the next rung may act (guard and checkpoints excepted)."""
    healthy_steps: int = 100
    """Steps of low risk after which the latest treatment is taken back."""
    verify_steps: int = 50
    """Window in which a treatment must bring risk and loss back to count as helped."""
    rollback_margin_steps: int = 10
    """A rollback goes at least this far before the onset."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
