"""`find_nonfinite`: known causes, each located."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from supervisor.errors import UsageError
from supervisor.numerics.nan_locator import NonfiniteReport, StepWatch, find_nonfinite

INF = float("inf")


class Lambda(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Norm(Lambda):
    """Its name says what it is."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.score = Lambda(lambda scores: scores.softmax(-1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query = self.query(x)
        scores = (query @ query.transpose(-1, -2)).masked_fill(mask, -INF)
        return self.score(scores) @ query


def between(module: nn.Module | Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A model with `module` at ``1.0``."""
    inner = module if isinstance(module, nn.Module) else Lambda(module)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(inner, nn.Linear(4, 4)))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def batch() -> torch.Tensor:
    return torch.randn(6, 4)


@pytest.mark.parametrize(
    ("module", "operation", "kind"),
    [
        (lambda x: (x * 0).log(), "log", "log_of_zero"),
        (lambda x: (x * 0).abs().log_(), "log", "log_of_zero"),
        (lambda x: (-x.abs() - 1).log(), "log", "log_of_negative"),
        (lambda x: x / (x * 0), "div", "division_by_zero"),
        (lambda x: (x * 0).reciprocal(), "reciprocal", "division_by_zero"),
        (lambda x: (-x.abs() - 1).sqrt(), "sqrt", "root_of_negative"),
        (lambda x: (x * 1e4).exp(), "exp", "exp_overflow"),
        (lambda x: (x * 0).pow(-1.5), "pow", "division_by_zero"),
        (lambda x: (x * 1e30) * 1e30, "mul", "overflow"),
        (lambda x: (x.abs() + 1).acos(), "acos", "outside_domain"),
        (lambda x: x + x[x > 1e9].mean(), "mean", "empty_reduction"),
        (lambda x: x - x[:1].std(0), "std", "too_few_elements"),
        (lambda x: (x - x.mean(-1, keepdim=True)) / (x * 0).std(-1, keepdim=True), "div",
         "zero_variance"),
        (Norm(lambda x: (x * 0) / (x * 0)), "div", "zero_variance"),
        (Norm(lambda x: x * (x * 0).pow(2).mean(-1, keepdim=True).rsqrt()), "rsqrt",
         "zero_variance"),
        (nn.Sequential(Lambda(lambda x: x * 0), nn.LayerNorm(4, eps=0.0)), "native_layer_norm",
         "zero_variance"),
    ],
)  # fmt: skip
def test_the_forward_operation_and_its_module_are_named(
    module: Any, operation: str, kind: str, batch: torch.Tensor
) -> None:
    report = find_nonfinite(between(module), batch)

    assert report.found
    assert (report.phase, report.operation, report.kind) == ("forward", operation, kind)
    assert report.module.startswith("1.0")
    assert report.cause
    assert report.fix


def test_infinities_are_followed_to_where_they_became_nan(batch: torch.Tensor) -> None:
    report = find_nonfinite(between(lambda x: (x * 0).log()), batch)

    assert report.then == "1.1: addmm (forward)"
    assert report.values["zeros"] == 24


def test_rows_of_attention_that_are_masked_entirely_are_counted() -> None:
    mask = torch.zeros(2, 3, 3, dtype=torch.bool)
    mask[0, 1] = True

    report = find_nonfinite(Attention(), (torch.randn(2, 3, 4), mask))

    assert (report.module, report.operation, report.kind) == ("score", "softmax", "all_masked")
    assert (report.values["masked_rows"], report.values["rows"]) == (1, 6)


def test_the_attention_of_torch_is_seen_through() -> None:
    model = nn.MultiheadAttention(4, 1, batch_first=True)
    tokens = torch.randn(2, 3, 4)
    padding = torch.tensor([[True] * 3, [False] * 3])
    sample = {"query": tokens, "key": tokens, "value": tokens, "key_padding_mask": padding}

    report = find_nonfinite(model, sample)

    assert report.kind == "all_masked"


@pytest.mark.parametrize("rows", [slice(1, 2), slice(1, 3)])
def test_masks_that_leave_something_visible_are_nobodys_fault(rows: slice) -> None:
    mask = torch.zeros(2, 3, 3, dtype=torch.bool)
    mask[:, :, rows] = True

    report = find_nonfinite(Attention(), (torch.randn(2, 3, 4), mask))

    assert not report.found
    assert "No NaN" in repr(report)


def test_an_additive_mask_in_the_batch_and_one_in_a_buffer_are_fine() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("mask", torch.full((3, 3), -INF).triu(1))

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (self.layer(x) + self.mask + mask).softmax(-1)

    mask = torch.full((3, 3), -INF).triu(1)

    assert not find_nonfinite(Masked(), (torch.randn(2, 3, 3), mask)).found


def test_a_linear_layer_that_overflows_fp16_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).half()
    with torch.no_grad():
        model[0].bias.fill_(10)
        model[2].weight.fill_(60000)

    report = find_nonfinite(model, torch.rand(3, 4).half())

    assert (report.module, report.module_type) == ("2", "Linear")
    assert report.kind == "projection_overflow"
    assert report.values["input_2_max"] == 60000 or report.values["input_1_max"] > 1


def test_raw_pixels_in_a_half_precision_convolution_are_an_input_out_of_range() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).half()
    with torch.no_grad():
        model[0].weight.fill_(3000)

    report = find_nonfinite(model, torch.full((1, 3, 6, 6), 255.0).half())

    assert (report.module, report.kind) == ("0", "vision_input_range")
    assert report.values["image_max"] == 255


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda x: (x * 0).sqrt(), "sqrt"),
        (lambda x: x + (x * 0).pow(2).sum(-1, keepdim=True).sqrt(), "sqrt"),
        (lambda x: torch.where(x * 0 > 1, (x * 0).log(), x), "log"),
        (lambda x: (x * 0).abs().pow(0.5), "pow"),
        (lambda x: (x * 0 + 1).acos(), "acos"),
    ],
)
def test_what_fails_only_in_the_backward_pass_is_found_there(
    function: Callable[[torch.Tensor], torch.Tensor], operation: str, batch: torch.Tensor
) -> None:
    report = find_nonfinite(between(function), batch)

    assert report.found
    assert (report.module, report.operation) == ("1.0", operation)
    assert report.kind in ("infinite_derivative", "log_of_zero")


def test_a_recomputed_block_is_named_by_its_inner_module(batch: torch.Tensor) -> None:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = between(lambda x: (x * 0).sqrt())

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": checkpoint(self.block, x, use_reentrant=False).sum()}

    report = find_nonfinite(Recomputed(), batch)

    assert (report.phase, report.module, report.operation) == ("backward", "block.1.0", "sqrt")


def test_the_loss_function_is_its_own_place(batch: torch.Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    report = find_nonfinite(model, batch, lambda output: (output * 0).log().mean())

    assert (report.phase, report.module, report.kind) == ("loss", "(loss)", "log_of_zero")


def test_a_loss_with_a_target_takes_the_last_of_the_batch(batch: torch.Tensor) -> None:
    ignored = torch.full((6,), -100)

    report = find_nonfinite(nn.Linear(4, 4), (batch, ignored), nn.CrossEntropyLoss())
    sound = find_nonfinite(nn.Linear(4, 4), (batch, ignored * 0), nn.CrossEntropyLoss())

    assert (report.kind, report.values["targets_used"]) == ("no_targets", 0)
    assert not sound.found


@pytest.mark.parametrize("value", [float("nan"), INF])
def test_a_sick_batch_or_parameter_is_reported_before_anything_runs(
    value: float, batch: torch.Tensor
) -> None:
    model = nn.Linear(4, 4)
    spoiled = batch.clone()
    spoiled[0, 0] = value

    by_batch = find_nonfinite(model, {"input": spoiled})
    with torch.no_grad():
        model.weight[0, 0] = value
    by_weight = find_nonfinite(model, batch)

    assert (by_batch.phase, by_batch.module) == ("input", "input")
    assert (by_weight.phase, by_weight.module) == ("parameter", "weight")


def test_a_derivative_of_ones_own_is_named_after_its_module(batch: torch.Tensor) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.relu()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient / (ctx.saved_tensors[0] * 0)

    report = find_nonfinite(between(Own.apply), batch)

    assert (report.phase, report.module, report.operation) == ("backward", "1.0", "own")


def test_autocast_that_overflows_is_a_conversion(batch: torch.Tensor) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.float16):
                return self.layer(x)

    report = find_nonfinite(Cast(), batch * 1e6)

    assert (report.module, report.kind) == ("layer", "cast_overflow")


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8)),
        (nn.LSTM(4, 4, 2, dropout=0.1), torch.randn(2, 3, 4)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.rand(2, 3, 5, 5)),
    ],
)
def test_a_sound_model_is_left_as_it_was(model: nn.Module, sample: torch.Tensor) -> None:
    state = copy.deepcopy(model.state_dict())
    random_state = torch.get_rng_state()

    report = find_nonfinite(model, sample)

    assert not report.found
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(random_state, torch.get_rng_state())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_pass_that_raises_is_one_line_unless_something_was_found_before() -> None:
    def check(x: torch.Tensor) -> torch.Tensor:
        if not bool(torch.isfinite(x).all()):
            raise ValueError("the model checks\nits values")
        return x

    model = nn.Sequential(nn.Linear(4, 4), Lambda(lambda x: (x * 0).log()), Lambda(check))

    report = find_nonfinite(model, torch.randn(2, 4))
    with pytest.raises(UsageError, match="the pass failed in 0 ") as caught:
        find_nonfinite(model, torch.randn(2, 5))

    assert (report.module, report.kind) == ("1", "log_of_zero")
    assert "\n" not in str(caught.value)


def test_the_report_is_plain_data(batch: torch.Tensor) -> None:
    document = find_nonfinite(between(lambda x: (x * 0).log()), batch).to_dict()

    assert document["module"] == "1.0"
    assert document["values"]["zeros"] == 24


class Distance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).pow(2).sum(1, keepdim=True).sqrt()


def watched_step(
    model: nn.Module,
    batch: torch.Tensor,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = torch.mean,
    learning_rate: float = 0.1,
    stops: bool = False,
) -> NonfiniteReport:
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    watch = StepWatch({"model_0": model}, [optimizer])
    watch.prepare()
    handle = model.register_forward_pre_hook(lambda *_: watch.start())
    loss = loss_of(model(batch))
    if not stops:
        watch.before_backward(loss)
        loss.backward()
        watch.after_backward()
        optimizer.step()
    found = watch.stop()
    handle.remove()
    assert found is not None
    return found


def test_an_operation_of_the_scripts_own_loss_is_named() -> None:
    found = watched_step(nn.Linear(4, 1), torch.ones(2, 4), lambda out: (out * 0).log().mean())

    assert (found.phase, found.module, found.operation) == ("loss", "(loss)", "log")
    assert found.kind == "log_of_zero"


def test_a_script_that_stops_at_its_bad_loss_is_explained_all_the_same() -> None:
    found = watched_step(
        nn.Linear(4, 1), torch.ones(2, 4), lambda out: out.mean() / torch.zeros(()), stops=True
    )

    assert (found.module, found.kind) == ("(loss)", "division_by_zero")


def test_an_infinite_derivative_is_found_in_the_module_whose_it_is() -> None:
    found = watched_step(nn.Sequential(nn.Identity(), Distance()), torch.zeros(2, 4))

    assert (found.phase, found.module, found.operation) == ("backward", "1", "sqrt")
    assert found.kind == "infinite_derivative"


def test_an_update_that_leaves_the_range_is_the_optimizers() -> None:
    found = watched_step(nn.Linear(4, 1), torch.ones(2, 4) * 1e30, learning_rate=1e30)

    assert (found.phase, found.module) == ("update", "(optimizer)")


def test_a_sound_step_keeps_its_numbers_and_shows_nothing() -> None:
    torch.manual_seed(0)
    watched, plain = nn.Linear(4, 1), nn.Linear(4, 1)
    plain.load_state_dict(watched.state_dict())
    batch = torch.randn(3, 4)

    found = watched_step(watched, batch)

    plain(batch).mean().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert not found.found
    assert torch.equal(watched.weight, plain.weight)


@pytest.mark.parametrize("sick", ["one", "two"])
def test_of_several_models_the_sick_one_is_named(sick: str) -> None:
    models = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)}
    with torch.no_grad():
        models[sick].weight.fill_(3e38)
    watch = StepWatch(models, [])
    watch.prepare()
    watch.start()
    for model in models.values():
        model(torch.ones(1, 4))

    found = watch.stop()

    assert found is not None
    assert found.module == sick
