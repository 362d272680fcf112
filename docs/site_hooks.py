"""What `make docs` adds to the pages: the reference, and plain text for links out of docs/."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.structure.files import File, Files

import supervisor


def on_files(files: Files, config: Any) -> Files:
    """Adds the reference: every public name with its signature and docstring."""
    homes = supervisor._HOMES
    named = [f"::: {homes[name]}.{name}" for name in supervisor.__all__ if name in homes]
    text = "# Reference\n\nEvery name of `import supervisor`.\n\n" + "\n\n".join(named) + "\n"
    files.append(File.generated(config, "reference.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Shows files beside docs/ by their path: the site does not hold them."""
    up = "../" * (1 + page.file.src_uri.count("/"))
    out = rf"\[([^\]]*)\]\({re.escape(up)}([^)#]*)[^)]*\)"
    return re.sub(out, r"\1 (`\2`)", markdown)
