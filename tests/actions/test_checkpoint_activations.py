"""What models offer against lack of memory, and that it changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from supervisor.actions.checkpoint_activations import ActivationCheckpointing, CheckpointActivations
from tests.actions.small_context import build_scene


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4))
        self.use_checkpoint = False
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.run, x, use_reentrant=False) if self.use_checkpoint else self.run(x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        return self.layers(x)


class ByMethod(nn.Module):
    """As the models of Hugging Face do it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.given: dict[str, Any] | None = None

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None
    ) -> None:
        self.given = gradient_checkpointing_kwargs
        self.block.use_checkpoint = True

    def gradient_checkpointing_disable(self) -> None:
        self.block.use_checkpoint = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.block.use_checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


@pytest.mark.parametrize("build", [Block, ByMethod, lambda: Wrapped(ByMethod())])
def test_the_training_is_the_same_to_the_bit_with_activations_computed_again(build: Any) -> None:
    scenes = [build_scene(build()) for _ in range(2)]
    for scene in scenes:
        torch.manual_seed(7)
        if scene is scenes[1]:
            result = CheckpointActivations().apply(scene.context)
            assert "computed again" in result.detail
        scene.train(5)

    blocks = [m for s in scenes for m in s.model.modules() if isinstance(m, Block)]
    assert [block.forwards for block in blocks] == [5, 10]
    for kept, again in zip(*(s.model.parameters() for s in scenes), strict=True):
        assert torch.equal(kept, again)


def test_the_way_without_reentry_is_asked_for() -> None:
    model = ByMethod()
    ActivationCheckpointing(model).switch_on()

    assert model.given == {"use_reentrant": False}


def test_what_is_on_already_and_batch_normalisation_are_left_alone() -> None:
    model = ByMethod()
    assert ActivationCheckpointing(model).is_offered

    model.gradient_checkpointing_enable()
    normalised = nn.Sequential(Block(), nn.BatchNorm1d(4))

    assert not ActivationCheckpointing(model).is_offered
    assert not ActivationCheckpointing(normalised).is_offered
    refusal = CheckpointActivations().precondition(build_scene(normalised).context)
    assert refusal == "no model offers activation checkpointing that is not on already"


def test_taken_back_activations_are_kept_again() -> None:
    scene, action = build_scene(ByMethod()), CheckpointActivations()

    action.apply(scene.context)
    action.undo(scene.context)

    assert not scene.model.is_gradient_checkpointing
    assert scene.context.controls.is_neutral


class OnlyOn(nn.Module):
    """As Sentence Transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def gradient_checkpointing_enable(self) -> None:
        self.block.use_checkpoint = True


def test_a_model_that_can_only_be_switched_on_offers_it_and_stays_on() -> None:
    model = OnlyOn()
    offer = ActivationCheckpointing(model)

    assert offer.is_offered
    offer.switch_on()
    offer.switch_off()

    assert model.block.use_checkpoint


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize(
    "name",
    ["gradient_checkpointing_enable", "supports_gradient_checkpointing", "grad_checkpointing"],
)
def test_a_model_whose_properties_raise_offers_nothing(
    name: str, error: type[BaseException]
) -> None:
    def asked(_: nn.Module) -> None:
        raise error("who asks?")

    kind = type("Asked", (OnlyOn,), {name: property(asked)})

    ActivationCheckpointing(kind()).switch_on()  # it may offer it where nothing was asked

    assert ActivationCheckpointing(OnlyOn()).is_offered


def test_a_model_that_answers_to_any_name_offers_nothing() -> None:
    class Mock(nn.Module):
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: None

    assert not ActivationCheckpointing(Mock()).is_offered
