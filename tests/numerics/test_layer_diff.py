"""`layer_diff` on real small models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.numerics.figures import Level
from supervisor.numerics.layer_diff import layer_diff, relative_error


class Shared(nn.Module):
    """Calls the same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.relu(self.layer(x)))


@dataclass
class Output:
    logits: torch.Tensor
    states: tuple[torch.Tensor, ...]
    note: str = "kept"


class RecordOutput(nn.Module):
    """Returns a dataclass, as models of the transformers library do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Output:
        states = self.body(x)
        return Output(logits=self.head(states), states=(states,))


class Latent(nn.Module):
    """Draws noise, drops units, takes keywords, returns a dict with a number in it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.decoder = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, *, pixels: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        mean, log_variance = self.encoder(pixels).chunk(2, dim=-1)
        latent = mean + scale * torch.randn_like(mean) * (0.5 * log_variance).exp()
        return {"image": self.drop(self.decoder(latent)), "mean": mean, "count": 3}


class Lambda(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
    )


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("build", "shape", "names"),
    [
        (convolution, (2, 3, 6, 6), ["0", "1", "2", "3", "4", "(model)"]),
        (Shared, (5, 6), ["layer", "layer#2", "(model)"]),
        (RecordOutput, (3, 4), ["body", "head", "(model)"]),
        (lambda: nn.LSTM(5, 6, 2), (4, 2, 5), ["(model)"]),
    ],
)
def test_layers_come_in_forward_order_and_sound_ones_are_close(
    build: Callable[[], nn.Module], shape: tuple[int, ...], names: list[str], dtype: str
) -> None:
    diff = layer_diff(build(), torch.randn(shape), dtype=dtype)

    assert [layer.name for layer in diff.layers] == names
    assert all(0 < layer.relative_error < 0.05 for layer in diff.layers)


def test_a_transformer_layer_with_dropout_in_training_mode_draws_the_same_masks() -> None:
    diff = layer_diff(transformer().train(), torch.randn(2, 5, 16))

    assert "self_attn" in [layer.name for layer in diff.layers]
    assert diff.level is not Level.SEVERE


def test_sampled_noise_is_the_same_in_both_passes() -> None:
    diff = layer_diff(Latent().train(), {"pixels": torch.randn(64, 8)})

    assert diff["(model)"].relative_error < 0.05
    assert {output.tensor for output in diff["(model)"].outputs} == {".image", ".mean"}


def test_several_outputs_are_compared_one_by_one() -> None:
    diff = layer_diff(nn.LSTM(5, 6), torch.randn(4, 2, 5))

    assert [output.tensor for output in diff["(model)"].outputs] == ["[0]", "[1][0]", "[1][1]"]


def test_a_tuple_becomes_positional_arguments() -> None:
    model = nn.Bilinear(3, 4, 2)

    diff = layer_diff(model, (torch.randn(5, 3), torch.randn(5, 4)))

    assert diff.layers[0].type == "Bilinear"


def test_the_layer_that_overflows_fp16_is_severe_and_the_one_before_is_not() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Lambda(lambda x: (x.sigmoid() + 1) * 60000), nn.Tanh())

    diff = layer_diff(model, torch.randn(3, 4), dtype="fp16")

    assert diff["0"].level is Level.OK
    assert diff["1"].level is Level.SEVERE
    assert diff["1"].relative_error == float("inf")
    assert diff.worst == "1"
    assert diff.first_warning == "1"


def test_a_cancellation_loses_digits_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Lambda(lambda x: (x + 300.0) - 300.0), nn.Linear(8, 8))

    diff = layer_diff(model, torch.randn(16, 8), dtype="bf16")

    assert diff["1"].level is Level.SEVERE
    assert diff["1"].own_error > 0.1
    assert diff["2"].relative_error > 0.1
    assert diff["2"].own_error < 0.01


def test_the_dimension_whose_slices_differ_by_ten_thousand_is_named() -> None:
    scale = torch.tensor([1.0, 1.0, 1.0, 1e6])

    diff = layer_diff(Lambda(lambda x: x * scale.to(x.dtype)), torch.rand(5, 4) + 0.5)

    assert diff.layers[0].dimension == 1
    assert diff.layers[0].max_min_ratio > 1e5
    assert diff.layers[0].loses_addends


def test_the_model_its_hooks_and_the_random_state_are_as_before() -> None:
    model = convolution().train()
    called: list[str] = []
    model[0].register_forward_hook(lambda *_: called.append("mine"))
    state = copy.deepcopy(model.state_dict())
    random_state = torch.get_rng_state()

    layer_diff(model, torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1)))

    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert torch.equal(random_state, torch.get_rng_state())
    assert [len(module._forward_hooks) for module in model] == [1, 0, 0, 0, 0]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_half_precision_model_is_compared_with_its_own_fp32() -> None:
    model = nn.Linear(4, 4).to(torch.bfloat16)

    diff = layer_diff(model, torch.randn(3, 4), dtype=torch.bfloat16)

    assert diff.layers[0].relative_error > 0
    assert model.weight.dtype == torch.bfloat16


def test_autocast_serves_models_that_fix_their_types() -> None:
    model = nn.Sequential(Lambda(lambda x: x.float()), nn.Linear(4, 4))

    with pytest.raises(UsageError, match="1: the forward pass works in FP32 but not in bf16"):
        layer_diff(model, torch.randn(3, 4))
    diff = layer_diff(model, torch.randn(3, 4), autocast=True)

    assert 0 < diff["1"].relative_error < 0.05


def test_a_sample_of_the_wrong_shape_is_one_line_that_names_the_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))

    with pytest.raises(UsageError, match="forward pass in FP32 failed in 1 ") as caught:
        layer_diff(model, torch.randn(3, 4))

    assert "\n" not in str(caught.value)


def test_an_operation_that_a_type_lacks_is_named() -> None:
    def missing(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float16:
            raise RuntimeError("\"some_kernel\" not implemented for 'Half'")
        return x

    with pytest.raises(UsageError, match="0: the operation some_kernel does not exist for fp16"):
        layer_diff(nn.Sequential(Lambda(missing)), torch.randn(3), dtype="fp16")


@pytest.mark.parametrize(
    ("model", "dtype", "message"),
    [
        (lambda x: x, "bf16", "not a torch.nn.Module"),
        (nn.Identity(), "bf61", "did you mean bf16"),
        (nn.Identity(), torch.float32, "give one of bf16, fp16"),
        (Lambda(lambda x: "text"), "bf16", "nothing to compare"),
    ],
)
def test_what_cannot_be_compared_is_refused(model: Any, dtype: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        layer_diff(model, torch.randn(3), dtype=dtype)


def test_results_of_earlier_passes_in_attributes_do_not_hinder() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.last: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = [self.layer(x)]
            return self.last[0]

    model = Remembering()
    kept = model(torch.ones(2, 3))

    diff = layer_diff(model, torch.randn(2, 3))

    assert diff["layer"].level is Level.OK
    assert model.last[0] is kept


def test_packed_sequences_are_taken() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(3, 4)

        def forward(self, x: nn.utils.rnn.PackedSequence) -> torch.Tensor:
            return self.layer(x)[0].data

    sequence = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])

    diff = layer_diff(Packed(), (sequence,))

    assert [layer.name for layer in diff.layers] == ["layer", "(model)"]


def test_a_branch_that_only_one_pass_takes_is_said() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) if x.dtype == torch.float32 else self.second(x)

    diff = layer_diff(Branch(), torch.randn(3, 2))

    assert diff.unmatched == ("first", "second")


def test_the_document_has_the_promised_fields() -> None:
    document = layer_diff(Shared(), torch.randn(2, 6)).to_dict()

    assert {"dtype", "layers", "worst"} <= set(document)
    fields = {"name", "type", "relative_error", "level", "dimension", "max_min_ratio"}
    assert all(fields <= set(layer) for layer in document["layers"])
    assert document["layers"][0]["level"] == "ok"


def test_the_table_names_every_layer_and_the_plot_is_drawn(tmp_path: Path) -> None:
    diff = layer_diff(Shared(), torch.randn(2, 6))

    text, path = repr(diff), diff.plot(tmp_path / "diff.png")

    assert "layer#2" in text
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_mode & 0o777 == 0o600


def test_relative_error_leaves_out_what_is_not_finite_in_both() -> None:
    inf = float("inf")

    same = relative_error(torch.tensor([3.0, 4.0, inf]), torch.tensor([3.0, 4.5, inf]))
    one = relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, inf]))

    assert same == pytest.approx(0.1)
    assert one == inf


def test_nan_of_the_fp32_pass_itself_is_said() -> None:
    found = layer_diff(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.full((1, 2), float("nan")))

    assert found.nan_from == "0"
    assert "find_nonfinite" in repr(found)
