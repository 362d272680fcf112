"""The page and the text: complete, self-contained, and safe against what a run may contain."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from supervisor.records import NAN
from supervisor.report.curves.curve_document import curves_script
from supervisor.report.curves.plots import EVERY, draw_pictures
from supervisor.report.facts.run_data import load_material
from supervisor.report.gathering import gather
from supervisor.report.render import (
    escape_markdown,
    render_html,
    render_json,
    render_markdown,
)
from supervisor.report.write import document_of
from tests.report import synthetic_run
from tests.report.synthetic_run import ALL_ENDS, SyntheticRun

HOSTILE = "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>"


class Page(HTMLParser):
    """Collects tags, and whatever a browser would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "href", "xlink:href", "data", "action", "poster"):
                self.fetched.append(value or "")
            if name == "style":
                self.fetched.extend(re.findall(r"url\(([^)]*)\)", value or ""))
            if name.startswith("on"):
                self.handlers.append(name)


@pytest.mark.parametrize("name", sorted(ALL_ENDS))
def test_every_end_gives_a_page_and_a_text_with_the_verdict(tmp_path: Path, name: str) -> None:
    report = gather(ALL_ENDS[name](tmp_path / "run"))

    page, text = render_html(report), render_markdown(report)

    assert report.verdict.split(". ")[0] in page
    assert report.title in text
    assert json.loads(render_json(report))["verdict"] == report.verdict


def test_a_page_with_pictures_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    run_data = load_material(synthetic_run.treated(tmp_path / "run"))
    report = gather(run_data.root)

    page = render_html(report, draw_pictures(run_data, report, EVERY), document_of([run_data]))

    parsed = Page(page)
    assert parsed.tags.count("img") == 1
    assert all(address.startswith(("#", "data:image/png;")) for address in parsed.fetched)
    assert not {"link", "iframe", "object", "embed"} & set(parsed.tags)
    assert "@import" not in page
    assert not re.findall(r"https?://", page.replace(curves_script(), ""))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))


def test_hostile_words_of_a_run_stay_words(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "<b>run")
    run.start(1)
    run.steps(0, 30, losses={29: NAN, 30: NAN})
    run.event("alert", step=29, severity="critical", cause="nonfinite", message=HOSTILE)
    run.action("cut_lr", 29, detail=HOSTILE, outcome=HOSTILE)
    run.exit("exception", 30, evidence=(HOSTILE,))
    log = run.rundir.log(1, 0)
    run.rundir.make(log.parent)
    log.write_text(HOSTILE)
    root = run.finish("gave_up", reason=HOSTILE)
    (root / "report").mkdir()
    (root / "report" / "explain.json").write_text(
        json.dumps({"summary": HOSTILE, "root_cause": HOSTILE, "replays": [{"change": HOSTILE}]})
    )
    report = gather(root)

    page = Page(render_html(report))
    text = render_markdown(report)

    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert page.handlers == []
    outside_of_code = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in outside_of_code
    assert "<img" not in outside_of_code


def test_backticks_in_a_log_do_not_end_its_code_block(tmp_path: Path) -> None:
    root = synthetic_run.user_error(tmp_path / "run")
    (root / "logs" / "attempt_1" / "rank_0.log").write_text("a\n```\n<script>\n````\nb\n")

    text = render_markdown(gather(root))

    assert "`````text\na\n```\n<script>\n````\nb\n`````" in text


def test_markdown_of_a_cell_stays_in_its_cell() -> None:
    escaped = escape_markdown("a | b\nc `d` <e> @you #1")

    assert escaped == r"a \| b c \`d\` &lt;e&gt; \@you \#1"


def test_a_diagnosis_by_replay_is_shown_as_a_table(tmp_path: Path) -> None:
    root = synthetic_run.gave_up(tmp_path / "run")
    (root / "report").mkdir()
    (root / "report" / "explain.json").write_text(
        json.dumps({
            "root_cause": "learning_rate",
            "confidence": 0.9,
            "summary": "A lower learning rate cures it.",
            "replays": [
                {"change": "none", "crashed": True, "at_step": 158},
                {"change": "learning rate × 0.5", "crashed": False, "at_step": None},
            ],
        })
    )  # fmt: skip

    report = gather(root)

    assert "Controlled replay says: learning rate (confidence 90 %)." in report.evidence
    assert report.next_steps[0] == (
        "Controlled replay names the learning rate: a lower learning rate cures it."
    )
    assert "<td>learning rate × 0.5</td><td>no</td>" in render_html(report)
    assert "| none | yes | 158 |" in render_markdown(report)


@pytest.mark.parametrize("document", ['{"replays": 3}', '{"replays": "x"}', "[]", "{", '{"a": 1}'])
def test_a_diagnosis_in_another_form_prevents_nothing(tmp_path: Path, document: str) -> None:
    root = synthetic_run.gave_up(tmp_path / "run")
    (root / "report").mkdir()
    (root / "report" / "explain.json").write_text(document)

    report = gather(root)

    assert "divergence" in render_html(report)
    assert "divergence" in render_markdown(report)
