"""What the documentation names exists: links, files, commands, options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NOT_OF_THE_CHECKOUT = ("RUN/", "runs/")
PLACES = (ROOT, ROOT / "supervisor", ROOT / "tests")
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """Headings as a link spells them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target))


@EVERY_PAGE
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))

    dead = [link for link in links if "://" not in link and not leads_somewhere(page, link)]

    assert dead == []


@EVERY_PAGE
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|md|yaml))`", page.read_text(encoding="utf-8"))
    ours = [name for name in named if not name.startswith(NOT_OF_THE_CHECKOUT)]

    missing = [name for name in ours if not any((place / name).exists() for place in PLACES)]

    assert missing == []


@EVERY_PAGE
def test_every_benchmark_that_a_page_names_can_be_run(page: Path) -> None:
    named = re.findall(r"\bbenchmarks(?:\.\w+)+", page.read_text(encoding="utf-8"))
    places = [ROOT.joinpath(*name.split(".")) for name in named]

    missing = [
        place.name
        for place in places
        if not (place.with_suffix(".py").exists() or (place / "__main__.py").exists())
    ]

    assert missing == []


@EVERY_PAGE
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    shown = re.findall(
        r"(?:^|`)supervisor ([a-z]+)([^`\n#]*)", page.read_text(encoding="utf-8"), re.MULTILINE
    )

    assert {command for command, _ in shown} <= set(COMMANDS)
    for command, rest in shown:
        words = rest.split()
        ours = words[: next((i for i, word in enumerate(words) if word.endswith(".py")), None)]
        assert set(re.findall(r"--[a-z-]+", " ".join(ours))) <= options_of(command), (command, rest)


def options_of(command: str) -> set[str]:
    from supervisor.cli.options.command_parser import build_parser

    return set(build_parser(command)._option_string_actions)
