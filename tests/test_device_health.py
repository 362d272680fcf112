"""What is read from NVML, here a module that answers as it does."""

from __future__ import annotations

import inspect
import sys

import pytest

from supervisor.device_health import DeviceReading, Nvml, NvmlMissing, given_devices
from tests.fake_pynvml import FakeDevice, FakeNvml


def test_a_reading_holds_what_nvml_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(memory_errors=2, rows=(1, 2, 0, 1), reasons=0x40 | 0x4, temperature=88)
    FakeNvml(device).put_in_place(monkeypatch)

    (reading,) = Nvml().read()

    assert reading.title == "NVIDIA H100 (serial 1650)"
    assert (reading.memory_errors, reading.remapped_rows, reading.temperature_c) == (2, 3, 88)
    assert reading.slowed == ("too hot (hardware)",)  # a power cap is a choice
    assert reading.faults() == ["no memory row is left to remap"]


def test_what_a_driver_does_not_support_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = FakeDevice(
        serial=None, memory_errors=None, rows=None, temperature=None, tells_xids=False
    )
    nvml = FakeNvml(mute).put_in_place(monkeypatch)

    (reading,) = Nvml().read()

    assert reading == DeviceReading(index=0, name="NVIDIA H100", uuid="GPU-aaaa")
    assert not Nvml().hears_xids
    assert Nvml().xids(0.0) == []
    assert nvml.devices == (mute,)


def test_a_device_that_is_lost_keeps_its_name_and_its_xid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(FakeDevice(), FakeDevice(uuid="GPU-bbbb")).put_in_place(monkeypatch)
    nvml = Nvml()
    before = nvml.read()
    fake.devices[1].is_lost = True
    fake.xids += [(1, 79), (1, 43)]

    xids, after = nvml.xids(0.0), nvml.read()

    assert xids == [("GPU-bbbb", 79), ("GPU-bbbb", 43)]
    assert after[0].faults_since(before[0], []) == []
    assert after[1].faults_since(before[1], [79, 43]) == [
        "Xid 79: the device has fallen off the bus",
        "NVML cannot reach it any more",
    ]


def test_only_what_has_grown_is_a_new_fault() -> None:
    before = DeviceReading(index=0, name="A", uuid="u", memory_errors=3, remapped_rows=1)
    after = DeviceReading(index=0, name="A", uuid="u", memory_errors=5, remapped_rows=1)

    assert after.faults_since(before, []) == ["2 more uncorrected memory errors (ECC)"]
    assert after.faults_since(None, []) == []
    assert before.faults_since(after, [13, 31, 43]) == []


def test_why_nvml_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(refuses=9).put_in_place(monkeypatch)
    with pytest.raises(NvmlMissing, match=r"^NVML: Driver Not Loaded$"):
        Nvml()

    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlMissing, match=r"nvidia-ml-py is not installed"):
        Nvml()


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-b/1/0"}, [0, 1]),
    ],
)
def test_the_devices_that_a_training_is_given(
    environment: dict[str, str], given: list[int]
) -> None:
    devices = [DeviceReading(index=i, name="A", uuid=f"GPU-{'ab'[i]}") for i in (0, 1)]

    assert [device.index for device in given_devices(devices, environment)] == given


def test_numbers_say_nothing_where_cards_differ() -> None:
    devices = [DeviceReading(index=i, name="AB"[i], uuid=f"GPU-{'ab'[i]}") for i in (0, 1)]

    unsure = given_devices(devices, {"CUDA_VISIBLE_DEVICES": "0"})
    sure = given_devices(devices, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    assert (len(unsure), len(sure)) == (2, 1)


def test_the_fake_has_the_functions_of_the_real_module() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML_"))]

    for name in names:
        real, fake = getattr(pynvml, name), getattr(FakeNvml, name)
        if inspect.isfunction(fake):
            takes = len(inspect.signature(fake).parameters) - 1
            assert len(inspect.signature(real).parameters) >= takes
        elif not name.startswith("NVMLError"):
            assert real == fake
