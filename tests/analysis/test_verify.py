from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from supervisor.analysis.trail import (
    FirstDifference,
    Mark,
    advise,
    find_first_difference,
    kind_of,
    newest,
    part_ways,
    private_names,
    private_to,
)
from supervisor.analysis.trial_run import TrialRun, TrialScript
from supervisor.analysis.verify import Verification, judge_healed, verify
from supervisor.cli.main import main
from supervisor.errors import SupervisorError, UsageError
from supervisor.storage.run.rundir import RunDirectory
from tests.analysis.trial_scripts import HIDDEN, HIDDEN_FROM_WEIGHTS, OF_RANKS, SEEDED

SEVERAL_RUNS_S = 600
"""On a machine that is busy with other things every process start takes long."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mark(step: int, **changed: str) -> Mark:
    """A mark whose digests are those of its step, but for what is `changed`."""
    parts = {
        "weights": {"model_0.weight": f"w{step}"},
        "optimizer": {"optimizer_0.exp_avg of model_0.weight": f"o{step}"},
        "rng": {"python": f"p{step}", "torch": f"t{step}"},
    }
    data, loss = changed.pop("data", f"d{step}"), changed.pop("loss", f"l{step}")
    for part, value in changed.items():
        parts[part] = dict.fromkeys(parts.get(part, {"one": ""}), value)
    return Mark(
        attempt=1, step=step, data=data, loss=loss, parts=parts, wait_s=None, cost_s=0.0, facts={}
    )


def run_of(*marks: Mark) -> dict[int, Mark]:
    return newest([*(mark(step) for step in range(4)), *marks])


@pytest.mark.parametrize("part", ["data", "loss", "weights", "optimizer", "rng"])
def test_the_part_that_differs_is_named_with_its_step(part: str) -> None:
    found = part_ways(run_of(), run_of(mark(2, **{part: "other"})), set())

    assert found is not None
    assert (found.what, found.step) == (part, 2)


def test_of_several_differences_the_cause_is_named() -> None:
    other = run_of(mark(2, weights="x", optimizer="x", data="x", loss="x"), mark(3, rng="x"))

    found = part_ways(run_of(), other, set())

    assert found is not None
    assert (found.what, found.name) == ("data", "of step 1")


def test_a_run_that_ends_early_is_a_difference() -> None:
    found = part_ways(run_of(), run_of(mark(4)), set())

    assert found is not None
    assert found.what == "steps"


def test_what_was_not_seen_at_the_first_boundary_of_a_process_is_no_difference() -> None:
    blind = dataclasses.replace(mark(2), data=None, loss=None)

    assert part_ways(run_of(), run_of(blind), set()) is None


def test_a_generator_that_nobody_seeds_and_nobody_uses_does_not_count() -> None:
    one, other = run_of(), run_of(mark(2, rng="other"))

    assert part_ways(one, other, private_names(one, other)) is None


def test_a_tensor_of_a_variable_counts_only_where_both_runs_have_it() -> None:
    one = run_of(mark(2, variable="a"))

    assert part_ways(one, run_of(), set()) is None
    assert part_ways(one, run_of(mark(2, variable="b")), set()) is not None


def test_a_census_that_only_one_run_has_does_not_count() -> None:
    one = run_of(mark(2, script="= 1"))

    assert part_ways(one, run_of(), set()) is None
    assert part_ways(one, run_of(mark(2, script="= 2")), set()) is not None


def test_of_several_ranks_the_earliest_difference_is_named_with_its_rank() -> None:
    undisturbed = {rank: run_of() for rank in range(3)}
    resumed = {0: run_of(mark(3, rng="x")), 1: run_of(), 2: run_of(mark(2, weights="x"))}
    nothing = private_to(undisturbed, undisturbed)

    found = find_first_difference(undisturbed, resumed, nothing)

    assert found is not None
    assert (found.what, found.name, found.step) == ("weights", "model_0.weight (rank 2)", 2)
    assert find_first_difference(undisturbed, undisturbed, nothing) is None
    assert find_first_difference({0: run_of()}, {0: resumed[2]}, nothing) == dataclasses.replace(
        found, name="model_0.weight"
    )


@pytest.mark.parametrize(
    ("what", "step", "by_itself", "kind", "said"),
    [
        ("weights", 0, True, "weights", "manual_seed"),
        ("weights", 3, True, "operation", "use_deterministic_algorithms"),
        ("loss", 3, True, "operation", "use_deterministic_algorithms"),
        ("loss", 3, False, "hidden state", "supervisor.track(name=object)"),
        ("data", 3, False, "data", "supervisor.batches"),
        ("schedule", 3, False, "schedule", "supervisor.track"),
        ("rng", 3, False, "rng", "generator"),
        ("scaler", 3, False, "scaler", "GradScaler"),
        ("optimizer", 3, False, "optimizer", "optimizer.state"),
        ("script", 3, False, "script", "supervisor.track"),
    ],
)
def test_every_difference_has_its_advice(
    what: str, step: int, by_itself: bool, kind: str, said: str
) -> None:
    difference = FirstDifference(what=what, name="x", step=step)

    assert kind_of(difference, by_itself=by_itself) == kind
    assert said in advise(difference, by_itself=by_itself)


def test_the_text_names_the_first_difference_and_the_advice() -> None:
    text = str(
        Verification(
            exact=False,
            deterministic=True,
            steps=9,
            break_at=5,
            first_difference={"what": "rng", "name": "torch", "step": 6},
            advice="do this",
        )
    )

    assert text.startswith("NOT EXACT")
    assert "rng: torch, after 6 steps" in text
    assert text.endswith("advice: do this")


@pytest.mark.parametrize(("steps", "break_at"), [(4, None), (30, 30), (30, 2)])
def test_a_break_without_steps_around_it_is_refused(steps: int, break_at: int | None) -> None:
    with pytest.raises(UsageError, match="verify: --"):
        verify(TrialScript(words=("train.py",)), steps=steps, break_at=break_at)


def test_a_missing_script_ends_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "nowhere.py"]) == 64
    assert "nowhere.py: no such file" in capsys.readouterr().err


def test_a_folder_that_holds_something_is_not_taken(tmp_path: Path) -> None:
    Path("train.py").write_text("")

    with pytest.raises(SupervisorError, match="is not empty"):
        verify(TrialScript(words=("train.py",)), keep=tmp_path)


@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_a_script_that_shuffles_is_proved_exact(capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(SEEDED)

    code = main(["verify", "--steps", "12", "--json", "train.py"])

    document = json.loads(capfd.readouterr().out)
    assert document["exact"], document
    assert document["deterministic"]
    assert document["first_difference"] is None
    assert (document["steps"], document["break_at"], document["resumed_from"]) == (12, 6, 3)
    assert "weights" in document["proof"]
    assert code == 0
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


@pytest.mark.exhaustive
@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_state_that_hides_in_c_code_is_named() -> None:
    Path("train.py").write_text(HIDDEN)

    found = verify(TrialScript(words=("train.py",)), steps=12)

    assert not found.exact
    assert found.deterministic
    assert found.first_difference == {
        "what": "hidden state",
        "name": "loss of step 3",
        "step": 4,
    }


@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_what_the_scripts_python_holds_is_compared_where_the_weights_are_the_same() -> None:
    Path("train.py").write_text(HIDDEN_FROM_WEIGHTS)

    found = verify(TrialScript(words=("train.py",)), steps=12)

    assert not found.exact
    assert found.deterministic
    assert found.first_difference is not None
    assert found.first_difference["what"] == "script"
    assert found.first_difference["name"].startswith("main.seen")


@pytest.mark.exhaustive
@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_several_ranks_are_proved_exact_together(capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(OF_RANKS)

    code = main(["verify", "--nproc-per-node", "2", "--steps", "12", "--json", "train.py"])

    document = json.loads(capfd.readouterr().out)
    assert document["exact"], document
    assert (document["steps"], document["resumed_from"]) == (12, 3)
    assert code == 0


@pytest.mark.exhaustive
@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_healing_of_the_users_own_script_is_proved(capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(OF_RANKS)
    options = ["--nproc-per-node", "2", "--set", "restart.healing=on", "--steps", "12", "--json"]

    code = main(["verify", *options, "train.py"])

    document = json.loads(capfd.readouterr().out)
    assert (code, document["exact"], document["healed"]) == (0, True, True), document


def healed_run(folder: Path, *events: dict[str, object], differs: str = "") -> TrialRun:
    """A run of two ranks with these events and the marks of `run_of`."""
    rundir = RunDirectory(folder / "healed")
    for rank in (0, 1):
        rundir.make(rundir.trail(rank).parent)
        changed = [mark(3, weights=differs)] if differs and rank else []
        marks = [*run_of(*changed).values()]
        rundir.trail(rank).write_text(
            "".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in marks)
        )
    lines = [json.dumps({"time": "", "attempt": 1, "rank": 1, "step": 2, **e}) for e in events]
    rundir.journal.write_text("".join(line + "\n" for line in lines))
    return TrialRun(rundir=rundir, returncode=0, seconds=1.0, output="")


BACK = {"kind": "healed", "from_step": 1, "waited_s": 3.0, "answered": 4}
RESUMED = Verification(exact=True, deterministic=True, steps=4, break_at=2)


def test_a_healed_run_counts_only_if_it_is_as_undisturbed(tmp_path: Path) -> None:
    first = {rank: run_of() for rank in (0, 1)}
    nothing = private_to(first, first)

    same = judge_healed(RESUMED, first, healed_run(tmp_path / "a", BACK), nothing)
    other = judge_healed(RESUMED, first, healed_run(tmp_path / "b", BACK, differs="x"), nothing)

    assert (same.exact, same.healed) == (True, True)
    assert (other.exact, other.healed) == (False, False)
    assert other.first_difference is not None
    assert other.first_difference["what"] == "weights"
    assert "one rank came back alone: NOT the same" in str(other)


def test_a_rank_that_does_not_come_back_alone_is_no_difference(tmp_path: Path) -> None:
    first = {rank: run_of() for rank in (0, 1)}
    why = "rank 1 does not come back alone: c10d.send is used: all ranks start again"
    warned = {"kind": "warning", "message": why, "found": "rank not healed"}

    found = judge_healed(RESUMED, first, healed_run(tmp_path, warned), private_to(first, first))

    assert (found.exact, found.healed, found.not_healed) == (True, None, why)
    assert why in str(found)


def test_a_number_of_ranks_that_is_none_ends_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("")

    assert main(["verify", "--nproc-per-node", "0", "train.py"]) == 64
    assert "verify: --nproc-per-node 0: give a number" in capsys.readouterr().err
