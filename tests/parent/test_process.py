"""What a worker is started with."""

from __future__ import annotations

import pytest

from supervisor.parent.process import worker_environment


def test_all_workers_order_sets_of_texts_alike_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    of_itself = worker_environment(has_pipe=False)
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    as_told = worker_environment(has_pipe=False)

    assert of_itself["PYTHONHASHSEED"] == "0"
    assert as_told["PYTHONHASHSEED"] == "random"


def test_what_the_user_asked_of_the_heap_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")

    environment = worker_environment(has_pipe=False, huge_pages=True)

    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0"
    assert "SUPERVISOR_GLIBC_TUNABLES" not in environment
