"""What a worker is started with."""

from __future__ import annotations

import os

import pytest

from supervisor.own_process import give_back, worker_environment


def test_all_workers_order_sets_of_texts_alike_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    of_itself = worker_environment()
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    as_told = worker_environment()

    assert of_itself["PYTHONHASHSEED"] == "0"
    assert as_told["PYTHONHASHSEED"] == "random"


def test_what_a_worker_was_started_with_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    environment = {**worker_environment(), "SUPERVISOR_PARENT_PID": "7"}

    given = give_back(environment)

    assert environment == dict(os.environ)
    assert (given.parent, given.salt) == (7, "0")


def test_nothing_is_given_back_where_nothing_was_asked() -> None:
    environment = {"PYTHONHASHSEED": "3"}

    given = give_back(environment)

    assert environment == {"PYTHONHASHSEED": "3"}
    assert given.salt is None
