"""What a thread by NVML finds of an attempt, and what becomes of its exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from supervisor.codes import ExitCause, ExitSign, OutsideCause
from supervisor.parent.restarts.exits import with_device_findings
from supervisor.parent.watching import device_watch
from supervisor.parent.watching.device_watch import DeviceFindings, DeviceWatch
from supervisor.records import WorkerExit
from tests.fake_pynvml import FakeDevice, FakeNvml
from tests.parent.conftest import Ran

COMPLETED = ["note", {"kind": "completed"}]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DeviceWatch]]:
    watches: list[DeviceWatch] = []

    def watch(fake: FakeNvml, **environment: str) -> DeviceWatch:
        fake.put_in_place(monkeypatch)
        watches.append(DeviceWatch(environment))
        watches[-1].begin_attempt()
        watches[-1].findings()  # its first look is over
        return watches[-1]

    yield watch
    for each in watches:
        each.close()


def test_faults_of_an_attempt_are_those_since_its_beginning(
    watched: Callable[..., DeviceWatch],
) -> None:
    fake = FakeNvml(FakeDevice(memory_errors=7))
    watch = watched(fake)
    fake.xids += [(0, 94)]
    fake.devices[0].memory_errors = 8

    first = watch.findings().sentences
    watch.begin_attempt()

    assert first == (
        "NVML: NVIDIA H100 (serial 1650): Xid 94: a contained memory error",
        "NVML: NVIDIA H100 (serial 1650): 1 more uncorrected memory errors (ECC)",
    )
    assert watch.findings().sentences == ()


def test_an_xid_that_programs_cause_is_told_and_proves_nothing(
    watched: Callable[..., DeviceWatch],
) -> None:
    fake = FakeNvml(FakeDevice(reasons=0x40, temperature=93))
    watch = watched(fake)
    fake.xids += [(0, 31), (0, 31)]

    found = watch.findings()

    assert found.faults == ()
    assert "Xid 31, which a program" in found.notes[0]
    assert "too hot (hardware); now 93 °C" in found.notes[1]


def test_devices_of_others_do_not_count(watched: Callable[..., DeviceWatch]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fake = FakeNvml(FakeDevice(pids=[child.pid]), FakeDevice(uuid="GPU-b", pids=[os.getppid()]))
    watch = watched(fake)
    child.communicate(b"\n")
    fake.devices[0].pids = []  # the training has ended
    fake.xids += [(1, 79)]

    assert watch.findings() == DeviceFindings()


def test_a_device_that_was_not_given_does_not_count(watched: Callable[..., DeviceWatch]) -> None:
    fake = FakeNvml(FakeDevice(), FakeDevice(uuid="GPU-b"))
    watch = watched(fake, CUDA_VISIBLE_DEVICES="0")
    fake.xids += [(1, 79)]

    assert watch.findings() == DeviceFindings()


def test_nobody_waits_for_an_nvml_that_stalls(
    watched: Callable[..., DeviceWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(FakeDevice())
    watch = watched(fake)
    monkeypatch.setattr(device_watch, "ANSWER_S", 0.01)
    fake.stalls_s = 1.0

    assert watch.findings().notes == ("NVML has not answered for 0.01 s",)


def test_without_nvml_one_line_is_said_and_nothing_is_found(
    watched: Callable[..., DeviceWatch],
) -> None:
    watch = watched(FakeNvml(refuses=9))
    assert watch._thread is not None
    watch._thread.join()

    assert watch.news() == ["the devices' health is not watched: NVML: Driver Not Loaded"]
    assert watch.news() == []
    assert watch.findings() == DeviceFindings()


def test_without_devices_there_is_no_thread_and_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "has_devices", lambda: False)

    watch = DeviceWatch()

    assert (watch._thread, watch.news(), watch.findings()) == (None, [], DeviceFindings())


FAULT = DeviceFindings(faults=(device_watch.DeviceFault(device="H100 (serial 1)", what="Xid 79"),))


@pytest.mark.parametrize(
    ("cause", "evidence", "is_hardware"),
    [
        (ExitCause.KILLED, "SIGABRT, in the process itself", True),
        (ExitCause.HANG, "no step for 300 s", True),
        (ExitCause.EXCEPTION, "torch.AcceleratorError: CUDA error: unknown error", True),
        (ExitCause.EXCEPTION, "KeyError: 'label'", False),
        (ExitCause.NONFINITE, "the policy asked for an emergency stop", False),
    ],
)
def test_only_an_end_that_a_device_can_cause_is_laid_to_it(
    cause: ExitCause, evidence: str, is_hardware: bool
) -> None:
    before = WorkerExit(cause=cause, evidence=(evidence,))

    found = with_device_findings(before, FAULT)

    assert found.evidence == (evidence, "NVML: H100 (serial 1): Xid 79")
    assert found.device == ("H100 (serial 1)" if is_hardware else None)
    assert found.sign == (ExitSign.FAILING_DEVICE if is_hardware else None)
    assert found.outside == (OutsideCause.DEVICE if is_hardware else None)
    assert with_device_findings(before, DeviceFindings()) == before


def test_a_device_that_failed_twice_is_to_be_left_out(
    supervise: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(FakeDevice())
    fake.put_in_place(monkeypatch)
    found = iter([FAULT, FAULT])
    monkeypatch.setattr(DeviceWatch, "findings", lambda self: next(found))
    crash = [["steps", 0, 9], ["kill", signal.SIGABRT]]

    ran = supervise({"1": crash, "2": crash, "3": [["steps", 0, 9], COMPLETED]})

    exits = ran.of_kind("worker_exited")
    assert [e.get("device") for e in exits] == ["H100 (serial 1)", "H100 (serial 1)", None]
    assert exits[0]["sign"] == "failing_device"
    told = [event for event in ran.of_kind("warning") if event.get("found") == "suspect hardware"]
    assert [event["attempt"] for event in told] == [2]
    assert "H100 (serial 1) has failed 2 times in this run: leave it out" in told[0]["message"]
