"""The live page: one document with everything in it, and nothing of any run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from supervisor.report.curves.page_parts import curves_css, curves_script
from supervisor.report.facts.palette import page_css
from supervisor.report.words.render import TEMPLATES

STATIC = Path(__file__).with_name("static")


def live_page(nonce: str, *, is_list: bool) -> str:
    """Returns the page of one run, or of the list of runs; only scripts with `nonce` may run."""
    kind = "list" if is_list else "run"
    return _page().replace("{nonce}", nonce).replace("{kind}", kind)


@cache
def _page() -> str:
    styles = (page_css(), _read(TEMPLATES / "report.css"), curves_css(), _read(STATIC / "live.css"))
    page = _read(STATIC / "live.html")
    page = page.replace("/*styles*/", "\n".join(styles))
    return page.replace("/*scripts*/", f"{curves_script()}\n{_read(STATIC / 'live.js')}")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
