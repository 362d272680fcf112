"""Gradient flow and model health."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

from supervisor.errors import UsageError
from supervisor.numerics.gradient_flow import gradient_flow
from supervisor.numerics.model_health import model_health


def trained() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model(torch.randn(5, 4)).pow(2).sum().backward()
    return model


def test_each_layer_has_its_figures_in_the_order_of_the_model() -> None:
    model = trained()
    gradients = torch.cat([p.grad.flatten() for p in model[0].parameters() if p.grad is not None])

    flow = gradient_flow(model)

    first = flow.layers[0]
    assert [layer.name for layer in flow.layers] == ["0", "2"]
    assert first.norm == pytest.approx(float(gradients.norm()))
    assert first.mean == pytest.approx(float(gradients.abs().mean()))
    assert first.max == float(gradients.abs().max())
    assert first.min == float(gradients.abs().min())
    assert first.size == 15


def test_the_total_is_the_norm_that_clipping_sees() -> None:
    model = trained()

    flow = gradient_flow(model)

    assert flow.total_norm == pytest.approx(
        float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    )


def test_zeros_nan_and_missing_gradients_are_told_apart() -> None:
    model = trained()
    model[0].weight.grad = torch.zeros(3, 4)
    model[0].bias.grad = None
    model[2].weight.grad[0, 0] = float("nan")

    flow = gradient_flow(model)

    assert flow.layers[0].zero_share == 1.0
    assert flow.layers[1].nonfinite == 1
    assert flow.without_gradient == ("0.bias",)
    assert "Not finite in: 2." in repr(flow)


def test_shared_and_sparse_parameters_are_measured_once() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    model = nn.ModuleDict({"first": table, "second": table})
    table(torch.tensor([1, 1])).sum().backward()

    flow = gradient_flow(model)

    assert [layer.name for layer in flow.layers] == ["first"]
    assert flow.layers[0].zero_share == pytest.approx(0.8)


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(UsageError, match="between backward and step"):
        gradient_flow(nn.Linear(2, 2))


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_plot_is_drawn_privately(tmp_path: Path, ending: str, start: bytes) -> None:
    model = trained()
    model[0].weight.grad = torch.full((3, 4), float("nan"))

    path = gradient_flow(model).plot(tmp_path / f"flow.{ending}")

    assert path.read_bytes().startswith(start)
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_unknown_picture_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no picture format 'xyz'"):
        gradient_flow(trained()).plot(tmp_path / "flow.xyz")


def test_a_sound_model_is_healthy() -> None:
    health = model_health(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))

    assert health.healthy
    assert "Healthy" in repr(health)


def test_sick_parameters_buffers_and_gradients_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
        model[0].bias[1] = 2e4
    model[0].bias.grad = torch.tensor([float("inf"), 0.0])
    model[1].running_var.fill_(-float("inf"))
    model[1].running_mean.fill_(1e5)

    findings = model_health(model).findings

    assert [(f.name, f.kind, f.problem) for f in findings] == [
        ("0.weight", "parameter", "nan"),
        ("0.bias", "parameter", "huge"),
        ("0.bias", "gradient", "inf"),
        ("1.running_mean", "buffer", "huge"),
    ]
    assert findings[1].max_abs == 2e4


def test_the_line_for_huge_is_the_callers_choice() -> None:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 50.0)

    health = model_health(model, huge=10.0)

    assert [(f.layer, f.name, f.huge_count) for f in health.findings] == [("(model)", "weight", 1)]
    assert health.to_dict()["healthy"] is False


def test_of_tensors_that_are_spread_over_ranks_only_the_own_part_is_looked_at() -> None:
    """One rank may look alone: what it asked the others for they would not send."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,))
        model = nn.Linear(3, 4, bias=False)
        part = torch.tensor([[1.0, 0.0, float("nan")], [0.0, 2.0, 2.0]])
        model.weight = nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)]))
        model.weight.grad = DTensor.from_local(part.nan_to_num(), mesh, [Shard(0)])

        (layer,) = gradient_flow(model).layers
        (finding,) = model_health(model).findings
    finally:
        dist.destroy_process_group()

    assert (layer.size, layer.norm, layer.max) == (6, 3.0, 2.0)
    assert (finding.kind, finding.nan_count, finding.size) == ("parameter", 1, 6)
