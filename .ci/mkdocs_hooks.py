"""Hooks of mkdocs: what a page says of files that are in the repository and not on the site stays text."""

from __future__ import annotations

import re

#: A link to a file outside docs/: ``[text](../suites/README.md)``, with as many ``../`` as the page is deep.
OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<up>(?:\.\./)+)(?P<path>[\w./-]+)(?:#[\w-]+)?\)")


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """Leave links within docs/ alone; turn the others into their text."""
    depth = page.file.src_uri.count("/") + 1  # type: ignore[attr-defined]

    def text(match: re.Match[str]) -> str:
        return match["text"] if match["up"].count("../") >= depth else match[0]

    return OUTSIDE.sub(text, markdown)
