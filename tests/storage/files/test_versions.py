"""What is said of a Python or torch that nobody has tried."""

from __future__ import annotations

import pytest

from supervisor.storage.files.versions import untried_versions


@pytest.mark.parametrize(
    ("python", "torch"),
    [("3.10.0", "2.6.0"), ("3.13.9", "2.14.1+cu130"), ("3.9.1", "none"), ("3.12.1", "2.14.0a0")],
)
def test_nothing_is_said_of_what_was_tried(python: str, torch: str) -> None:
    assert untried_versions({"python": python, "torch": torch}) == ""


def test_one_line_names_what_is_newer() -> None:
    both = untried_versions({"python": "3.14.0rc1", "torch": "2.15.0.dev20270101+cpu"})
    one = untried_versions({"python": "3.12.1", "torch": "3.0.0"})

    assert "Python 3.14.0rc1" in both
    assert "torch 2.15.0.dev20270101+cpu (tried up to 2.14)" in both
    assert "torch 3.0.0" in one
    assert "3.12" not in one
    assert "\n" not in both
