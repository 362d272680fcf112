from __future__ import annotations

from collections import deque

import torch
from torch import nn

from supervisor.training_state.model_state import module_attributes, put_back_attributes


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.usage = deque([0.5], maxlen=3)
        self.scale = torch.ones(1)
        self.activation = torch.tanh


def test_counters_come_back_and_containers_stay_the_same_objects() -> None:
    model = nn.Sequential(Codebook())
    book = model[0]
    usage = book.usage
    saved = module_attributes(model)
    book.calls, book.warm = 7, True
    book.usage.append(0.1)

    put_back_attributes(model, saved)

    assert book.calls == 0
    assert book.usage is usage
    assert list(usage) == [0.5]


def test_tensors_functions_and_flags_are_no_business_of_it() -> None:
    saved = module_attributes(nn.Sequential(Codebook()))

    assert set(saved) == {"0:calls", "0:usage"}


def test_what_is_equal_stays_the_object_that_it_is() -> None:
    module = nn.Linear(1, 1)
    module.names = ["weight" + str(1), "bias"]  # type: ignore[assignment]
    module.zero = 0.0  # type: ignore[assignment]
    first = module.names[0]  # type: ignore[index]
    saved = module_attributes(module) | {":zero": -0.0}
    saved[":names"] = ["".join(saved[":names"][0]), "bias"]

    put_back_attributes(module, saved)

    assert module.names[0] is first  # type: ignore[index]
    assert str(module.zero) == "-0.0"
