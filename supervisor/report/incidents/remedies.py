"""What to do first about a piece of trouble, and the one setting to change."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.codes import ExitSign
from supervisor.events.run_events import WorkerExited
from supervisor.events.step_events import RollbackEvent
from supervisor.report.facts.crash_report import Incident
from supervisor.report.facts.figures import integer, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.incidents.process_incident import DISK_REFUSALS

RISE_EXPLAINS = frozenset({"loss_spike", "divergence"})
"""Trouble that a recent rise of the learning rate explains, unless it passed. NaN is not among it:
warm-ups rise too, and NaN has other causes more often."""
FIRST = 50
"""Steps in which the initialisation still matters; the detectors' windows are as long."""
FIRST_STEPS = "Look at the batch of that step, then at the initialisation: nothing grew before it."
ONE_BATCH = "Look at the batch of that step: nothing had grown before it."
PASSED_BATCH = (
    "Look at the batch of that step: one batch failed, and the steps around it were healthy."
)
NEXT_STEPS = 3
"""A bad batch costs one step, whose update is left out; bad weights or a bad optimizer state show
again in the very next steps."""
IN_SCRIPT = "in your script:"
"""Begins a setting that is the script's, not ours."""
_PROCESS_REMEDY = {
    "killed": "Find out who sent the signal (scheduler, memory killer, a colleague)",
    "host_out_of_memory": "Lower the number of loader workers or what they hold",
    "exception": "Fix the exception that is shown below",
    "supervisor_died": "Find out why the supervisor ended (reboot, kill -9)",
}
"""What is to be done before a resume."""
_LAST_WORD = {
    "out_of_memory": "Halve the micro-batch and accumulate more, or checkpoint activations",
    "hang": "Look at that line, and at the stacks below: they show what the script was waiting for",
    "user_error": "Fix the script or its arguments: another attempt would fail in the same way",
    "interrupted": "There is nothing to fix: resume when you are ready",
    "preempted": "There is nothing to fix: resume when the machine is back",
}
REMEDY_OF_KIND = {
    "corruption": ("Test the memory and the device of this machine before you trust it.", ""),
    "collapse": (
        "Anneal the KL term more slowly, use free bits, or weaken the decoder.",
        f"{IN_SCRIPT} the weight of the KL term",
    ),
    "dead_units": (
        "Lower the learning rate, or take an activation that does not die (GELU, leaky ReLU).",
        "restart.careful_lr_factor=0.25",
    ),
    "instability": (
        "Lower the learning rate for the rest of the run: it is at its limit.",
        "restart.careful_lr_factor=0.5",
    ),
    "reward_fall": (
        "Go on from a checkpoint of before the fall, with a smaller rate or a shorter step.",
        "",
    ),
    "loss_scale_collapse": (
        "Use BF16, or run the part that overflows in FP32.",
        f"{IN_SCRIPT} BF16 in place of FP16",
    ),
    "plateau": (
        "Look at the learning rate and at the data: the training has stalled, nothing is broken.",
        "",
    ),
    "resources": (
        "Look at what grows in memory, and at what slows the steps down.",
        "",
    ),
}
"""For kinds of trouble that say more than the facts around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericalFacts:
    """What was found out about numerical trouble on the way through the tree.

    Attributes:
        early: it came within the first steps of the run.
        mixed: a loss scale was seen.
        large: gradients had grown large before it.
        rise: first and last learning rate of the 20 steps before it, if that rose a lot.
    """

    early: bool
    mixed: bool
    large: bool
    rise: tuple[float, float] | None


def numerical_remedy(
    run_data: RunData, incident: Incident, facts: NumericalFacts
) -> tuple[str, str]:
    """Returns the remedy and the setting; trouble that a run got past needs no setting."""
    rise = facts.rise
    if rise is not None and incident.key in RISE_EXPLAINS and not incident.survived:
        return (
            f"End the rise of the learning rate earlier: it went from {show(rise[0])} to "
            f"{show(rise[1])} within the 20 steps before.",
            f"{IN_SCRIPT} the warm-up of the learning rate",
        )
    if incident.key == "divergence" and not facts.large and not facts.mixed:
        return (
            "Lower the learning rate, to a third at first: the loss climbed and did not stop.",
            f"{IN_SCRIPT} a third of the learning rate",
        )
    if incident.survived and incident.key != "divergence":
        return _after_it_passed(run_data, incident), ""
    if _came_back(run_data, incident):
        return (
            f"Look at what the script computes at step {incident.step}, in its data and in its "
            "loss: the trouble came back there when a new attempt began from older weights.",
            "",
        )
    return _by_facts(facts, incident.step or 0)


def _by_facts(facts: NumericalFacts, step: int) -> tuple[str, str]:
    if facts.early and facts.large:
        return (
            "Lengthen the warm-up or halve the learning rate: early gradients were large.",
            "restart.careful_lr_factor=0.25",
        )
    if facts.large:
        return (
            "Clip the gradient norm near its usual level and halve the learning rate.",
            "restart.careful_lr_factor=0.25",
        )
    if facts.mixed:
        return (
            "Run the sensitive part (attention, normalisation, loss) in FP32, or use BF16:"
            " values left the range of FP16 without large gradients.",
            f"{IN_SCRIPT} BF16 in place of FP16, or FP32 for the sensitive part",
        )
    if step < FIRST:
        return FIRST_STEPS, ""
    return ONE_BATCH, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to do first.

    Attributes:
        text: a sentence without its full stop.
        then_resume: and then the run is resumed.
    """

    text: str
    then_resume: bool = True

    @property
    def before_next(self) -> str:
        """The sentence for a run that has not to be resumed."""
        return f"{self.text}."

    def __str__(self) -> str:
        return f"{self.text}, then resume." if self.then_resume else f"{self.text}."


def process_remedy(run_data: RunData, incident: Incident) -> Remedy:
    """Returns what helps after the end of a process."""
    attempts = {
        event.attempt
        for event in run_data.of(WorkerExited)
        if event.cause and event.cause.value == incident.key and event.last_step == incident.step
    }
    if incident.key == "killed" and len(attempts) > 1:
        return Remedy(
            text=f"Look at what the script does after step {incident.step}: it was killed there "
            f"{len(attempts)} times, which is not chance (the kernel's log, `dmesg`, says more)",
            then_resume=False,
        )
    if asks_for_too_much(run_data, incident):
        return Remedy(text="Ask for less memory at the line above")
    if incident.sign is ExitSign.LOADER_DIED:
        return Remedy(
            text="A process that loads data died: look at how the next samples are loaded (memory, "
            "a native library); with num_workers=0 it shows its own error",
            then_resume=False,
        )
    if incident.sign in DISK_REFUSALS:
        return Remedy(text="Free space on the disk (or raise the quota)")
    if incident.sign is ExitSign.OWN_SIGNAL:
        return Remedy(text="Find what in your script sends this signal (os.kill, os.abort)")
    if incident.key in _LAST_WORD:
        return Remedy(text=_LAST_WORD[incident.key], then_resume=False)
    return Remedy(text=_PROCESS_REMEDY.get(incident.key, "Read the end of the log"))


def asks_for_too_much(run_data: RunData, incident: Incident) -> bool:
    """Whether the script's own request failed; not whether one of its processes was killed."""
    return incident.key == "host_out_of_memory" and any(
        integer(note.get("attempt")) == incident.attempt and note.get("traceback")
        for note in run_data.exit_notes
    )


def _after_it_passed(run_data: RunData, incident: Incident) -> str:
    """What to learn from trouble that a healthy run got past."""
    step, attempt = incident.step or 0, incident.attempt
    went_back = any(
        0 < (event.step or 0) - step <= NEXT_STEPS and event.attempt == attempt
        for event in run_data.of(RollbackEvent)
    )
    if went_back:
        return (
            "Look for what changed the weights or the optimizer's state (learning rate, the "
            "script's own code, the hardware): the next batches failed too, until older "
            "weights were put back, so it was not one batch."
        )
    return PASSED_BATCH


def _came_back(run_data: RunData, incident: Incident) -> bool:
    """Whether the same step was not finite in another attempt, too."""
    steps = run_data.steps
    same = steps.take((steps.step == incident.step) & (steps.attempt != incident.attempt))
    return incident.key == "nonfinite_loss" and bool(same.nonfinite_loss.any())
