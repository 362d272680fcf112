from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest
import torch

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.training_state.state import FORMAT, STATE_FILE, digest, read_state, write_state
from tests.training_state.small_runs import SmallModel, build_run


def test_plain_torch_reads_the_file_in_two_lines(tmp_path: Path) -> None:
    run = build_run(lambda p: torch.optim.Adam(p, 0.01))
    run.train(2)
    path = write_state(tmp_path, run.state.capture())
    model = SmallModel()

    state = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(state["models"]["model_0"], strict=False)

    assert torch.equal(model.first.weight, run.model.first.weight)


def test_what_is_read_has_the_digest_of_what_was_written(tmp_path: Path) -> None:
    run = build_run(lambda p: torch.optim.Adam(p, 0.01))
    run.train(2)
    written = run.state.capture()

    write_state(tmp_path, written)

    assert digest(read_state(tmp_path)) == digest(written)


def test_the_file_is_private(tmp_path: Path) -> None:
    path = write_state(tmp_path, {"format": FORMAT})

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_small_view_does_not_drag_its_large_memory_along(tmp_path: Path) -> None:
    large = torch.zeros(1_000_000)

    path = write_state(tmp_path, {"format": FORMAT, "held": {"x": large[:2]}})

    assert path.stat().st_size < 10_000


def test_tied_tensors_are_written_once(tmp_path: Path) -> None:
    tensor = torch.zeros(100_000)

    path = write_state(tmp_path, {"format": FORMAT, "a": tensor, "b": tensor})

    assert path.stat().st_size < 500_000


def test_something_that_is_not_plain_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state\['extra'\]\['hook'\]: function is neither"):
        write_state(tmp_path, {"format": FORMAT, "extra": {"hook": lambda: None}})


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_state(tmp_path)


@pytest.mark.parametrize("kept", [0, 10, 300, -20])
def test_a_truncated_file_is_damaged(kept: int, tmp_path: Path) -> None:
    path = write_state(tmp_path, {"format": FORMAT, "a": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(CheckpointDamaged, match=r"state\.pt"):
        read_state(tmp_path)


def test_a_file_that_would_execute_something_is_refused(tmp_path: Path) -> None:
    torch.save({"format": FORMAT, "hook": Path}, tmp_path / STATE_FILE)

    with pytest.raises(CheckpointDamaged):
        read_state(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path, {"format": FORMAT + 1})

    with pytest.raises(CheckpointError, match="update training-supervisor"):
        read_state(tmp_path)


def test_small_tensors_share_memory_in_the_file_and_are_what_they_were(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tied, wide = torch.randn(3), torch.randn(4, 6)
    many = [torch.randn(4, 4) for _ in range(100)]
    held = {
        **{"tied": tied, "twice": [tied, (tied,)], "turned": wide.t(), "part": wide[1:, 2:]},
        **{"number": torch.tensor(7), "empty": torch.empty(0, 3), "half": torch.ones(2).half()},
        **{"flags": torch.tensor([True, False]), "long": torch.randn(1000), "many": many},
        **{"plain": [None, True, 3, -(1 << 40), 1.5, float("nan"), "wörter", (), {}, []]},
    }
    state = {"format": FORMAT, "held": held}

    path = write_state(tmp_path, state)
    found = read_state(tmp_path)

    assert digest(found) == digest(state)
    assert found["held"]["twice"][0] is found["held"]["tied"] is found["held"]["twice"][1][0]
    assert found["held"]["turned"].stride() == wide.t().stride()
    assert found["held"]["part"].untyped_storage().data_ptr() == (
        found["held"]["turned"].untyped_storage().data_ptr()
    )
    assert found["held"]["plain"][:5] == [None, True, 3, -(1 << 40), 1.5]
    assert len(zipfile.ZipFile(path).namelist()) < 20


@pytest.mark.parametrize(
    "odd",
    [torch.ones(2, dtype=torch.complex64), torch.ones(2).to(torch.uint16)],
    ids=["complex", "uint16"],
)
def test_a_tensor_of_an_unusual_kind_is_written_by_torch_beside_small_ones(
    odd: torch.Tensor, tmp_path: Path
) -> None:
    held = {"first": torch.ones(3), "odd": odd, "last": torch.zeros(3)}

    write_state(tmp_path, {"format": FORMAT, "held": held})
    found = read_state(tmp_path)["held"]

    assert found["odd"].dtype is odd.dtype
    assert torch.equal(found["odd"], odd)
    assert torch.equal(found["first"], held["first"])
    assert torch.equal(found["last"], held["last"])
