from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import supervisor.analysis.doctor.doctor as doctor_module
from supervisor.analysis.doctor.doctor import check_first_steps, doctor
from supervisor.analysis.doctor.machine import (
    Check,
    _devices,
    _disk_speed,
    _name_clash,
    check_machine,
)
from supervisor.analysis.doctor.script import (
    check_checkpoints,
    check_clipping,
    check_exactness,
    check_loader,
    check_losses,
    check_precision,
    check_replay,
    check_signals,
)
from supervisor.analysis.trail import Mark
from supervisor.analysis.trial_run import TrialScript
from supervisor.analysis.verify import Verification
from supervisor.cli.main import main
from supervisor.storage.steps.step_rows import STEP_DTYPE
from tests.analysis.trial_scripts import UNSEEDED
from tests.fake_pynvml import FakeDevice, FakeNvml
from tests.journals import event

SEVERAL_RUNS_S = 600
"""On a machine that is busy with other things every process start takes long."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows_of(
    *, losses: tuple[float, ...] = (2.0, 1.0), norm: float = 1.0, step_s: float = 0.1
) -> np.ndarray:
    rows = np.zeros(len(losses), STEP_DTYPE)
    rows["step"] = range(len(losses))
    rows["loss"] = losses
    rows["grad_norm"] = norm
    rows["step_time_s"] = step_s
    return rows


def mark_with(*, wait_s: float | None) -> Mark:
    return Mark(
        attempt=1, step=1, data=None, loss=None, parts={}, wait_s=wait_s, cost_s=0.0, facts={}
    )


@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_the_machine_alone_is_checked_as_a_json_list(capfd: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])

    checks = {check["name"]: check for check in json.loads(capfd.readouterr().out)}
    assert all(set(check) == {"name", "ok", "detail"} for check in checks.values())
    assert all(checks[name]["ok"] for name in ("python", "torch", "state", "random numbers"))
    assert {"import name", "memory", "disk space", "disk speed", "device"} <= checks.keys()
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_a_script_gets_its_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "check_machine", lambda *_: [])
    Path("train.py").write_text(UNSEEDED)

    checks = {check.name: check for check in doctor(TrialScript(words=("train.py",)), steps=12)}

    assert list(checks) == [
        "silent mistakes",
        "training",
        "gradient clipping",
        "precision fallback",
        "data loader",
        "signals",
        "checkpoints",
        "copies in memory",
        "exact resume",
        "replay",
    ]
    assert "12 steps" in checks["training"].detail
    assert "clips at 1," in checks["gradient clipping"].detail
    assert "MiB each" in checks["checkpoints"].detail
    assert checks["signals"].ok
    assert not checks["exact resume"].ok
    assert "manual_seed" in checks["exact resume"].detail


FORGETFUL = """
from pathlib import Path
import torch
from torch import nn

torch.manual_seed(0)
net, head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
refused = []
for write in (
    lambda: open(OUTSIDE, "w"),
    lambda: torch.save(net, OUTSIDE),
    lambda: Path("large.bin").write_bytes(b"gone"),
    lambda: Path(OUTSIDE).parent.joinpath("new").mkdir(),
):
    try:
        write()
    except PermissionError:
        refused.append(1)
Path("result.txt").write_text(str(len(refused)))
for step in range(70):
    x = torch.randn(8, 8)
    loss = head(net(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert len(refused) == 4
"""


def test_the_first_steps_run_in_a_copy_and_writes_elsewhere_are_refused_and_named(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "out.pt"
    monkeypatch.setattr("supervisor.analysis.doctor.doctor.LARGE", 8)
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    Path("train.py").write_text(FORGETFUL.replace("OUTSIDE", repr(str(elsewhere))))
    Path("large.bin").write_bytes(b"a large file")
    script = TrialScript(words=(str(Path("train.py").absolute()),))

    checks = check_first_steps(script, tmp_path_factory.mktemp("runs"), lambda _: None)

    assert [(check.name, check.ok) for check in checks] == [
        ("silent mistakes", False),
        ("writes", False),
    ]
    assert "train.py:8: 2 of 4 tensors" in checks[0].detail
    assert str(elsewhere) in checks[1].detail
    assert not elsewhere.exists()
    assert Path("large.bin").read_bytes() == b"a large file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.bin", "train.py"]


def test_first_steps_that_take_too_long_are_ended_and_it_is_said(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr("supervisor.analysis.trial_run._COMMAND", waits)
    monkeypatch.setattr("supervisor.analysis.doctor.doctor.LIMIT_S", 0.0)
    folder = tmp_path_factory.mktemp("runs")

    (check,) = check_first_steps(TrialScript(words=("train.py",)), folder, lambda _: None)

    assert check.ok
    assert check.detail == "none in the first 0 s, too few for 128 steps"


def test_a_script_that_does_not_train_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "check_machine", lambda *_: [])
    Path("train.py").write_text("import sys; sys.exit('no such data')")

    checks = doctor(TrialScript(words=("train.py",)))

    assert [(check.name, check.ok) for check in checks] == [("training", False)]
    assert "no such data" in checks[0].detail


def test_a_missing_script_ends_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "nowhere.py"]) == 64
    assert "nowhere.py: no such file" in capsys.readouterr().err


def test_a_check_that_fails_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Check(name="disk space", ok=False, detail="0.1 GiB free")
    monkeypatch.setattr(doctor_module, "check_machine", lambda *_: [bad])

    assert main(["doctor"]) == 1
    assert "NOT OK  disk space  0.1 GiB free" in capsys.readouterr().out


def test_supervisord_in_the_same_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "supervisord.py").write_text("")

    check = _name_clash(tmp_path)

    assert not check.ok
    assert "pip uninstall" in check.detail


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    assert not _disk_speed(tmp_path / "missing").ok


def test_a_torch_that_cannot_be_imported_is_one_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.analysis.doctor.machine.sys.executable", str(tmp_path / "no"))

    checks = {check.name: check for check in check_machine(tmp_path, tmp_path)}

    assert not checks["torch"].ok
    assert checks["python"].ok


def test_a_run_without_losses_is_no_training() -> None:
    assert check_losses(rows_of()).ok
    assert not check_losses(rows_of(losses=(math.nan, math.nan))).ok
    assert not check_losses(rows_of(losses=(1.0, math.nan))).ok


@pytest.mark.parametrize(
    ("norm", "clips_at", "ok", "said"),
    [
        (1.0, None, True, "does not clip"),
        (1.0, 1.5, True, "clips at 1.5, 0% of the steps"),
        (5.0, 1.0, True, "clips at 1, 100% of the steps"),
        (50.0, 1.0, False, "raise it"),
        (0.001, 1.0, False, "never acts"),
    ],
)
def test_the_bound_is_held_against_the_norms(
    norm: float, clips_at: float | None, ok: bool, said: str
) -> None:
    check = check_clipping(rows_of(norm=norm), clips_at)

    assert check.ok is ok
    assert said in check.detail


def test_peaks_without_clipping_are_named() -> None:
    rows = rows_of(losses=(1.0,) * 9)
    rows["grad_norm"][4] = 100.0

    check = check_clipping(rows, None)

    assert not check.ok
    assert "clip_grad_norm_" in check.detail


@pytest.mark.parametrize(
    ("wait_s", "ok"), [(None, True), (0.01, True), (0.001, True), (0.08, False)]
)
def test_a_loader_that_limits_the_training_is_named(wait_s: float | None, ok: bool) -> None:
    check = check_loader([mark_with(wait_s=wait_s)], rows_of(step_s=0.1))

    assert check.ok is ok


@pytest.mark.parametrize(
    ("step_s", "said"),
    [(0.003, "3.0 ms a step: a resume at step 100,000 takes at most 5.0 min"), (None, "no step")],
)
def test_how_long_a_resume_replays_is_told(step_s: float | None, said: str) -> None:
    resumed = event(
        "resumed", from_step=7, exactness="exact", reason="", order="", replayed_steps=7,
        batches_left_out=0, replayed_step_s=step_s,
    )  # fmt: skip

    check = check_replay([resumed])

    assert check.ok
    assert said in check.detail


def test_half_precision_has_a_fallback() -> None:
    assert "autocast" in check_precision({"uses_autocast": True}).detail
    assert "bfloat16" in check_precision({"dtypes": ["bfloat16", "float32"]}).detail
    assert "not needed" in check_precision({"dtypes": ["float32"]}).detail


def test_a_handler_of_the_script_is_named() -> None:
    check = check_signals({"sigterm": "__main__.on_term"})

    assert check.ok
    assert "__main__.on_term" in check.detail


def test_checkpoints_must_fit_on_the_disk(tmp_path: Path) -> None:
    assert check_checkpoints([event("checkpoint_saved", bytes=1000, seconds=0.1)], tmp_path).ok
    assert not check_checkpoints(
        [event("checkpoint_saved", bytes=1 << 60, seconds=0.1)], tmp_path
    ).ok
    assert not check_checkpoints([], tmp_path).ok


def test_an_exact_resume_is_well() -> None:
    found = Verification(exact=True, deterministic=True, steps=20, break_at=10)

    assert check_exactness(found).ok


def test_the_health_of_the_devices_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(
        FakeDevice(temperature=61, rows=(0, 1, 0, 0)), FakeDevice(serial=None, memory_errors=4)
    ).put_in_place(monkeypatch)

    check = _devices()

    assert not check.ok
    assert check.detail == (
        "NVIDIA H100 (serial 1650): 1 memory rows remapped, 61 °C; NVIDIA H100 (GPU-aaaa): 4 "
        "uncorrected memory errors (ECC), 60 °C: leave such a device out (CUDA_VISIBLE_DEVICES), "
        "or have it tested"
    )


def test_without_nvml_the_health_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(refuses=9).put_in_place(monkeypatch)

    check = _devices()

    assert (check.ok, check.detail) == (True, "not looked at: NVML: Driver Not Loaded")
