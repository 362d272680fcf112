"""constraints.txt pins each package that pip is asked for, once."""

from __future__ import annotations

import re

from tests.packaging.test_recipe import PROJECT, ROOT, split


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_each_package_is_pinned_once() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split(";")[0].strip() for line in lines if line and not line.startswith("#")]
    pinned = [canonical(pin.partition("==")[0]) for pin in pins]
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["dev"], *extras["docs"], *extras["versions"]]

    assert len(pinned) == len(set(pinned))
    assert {canonical(split(each)[0]) for each in asked} == set(pinned)
