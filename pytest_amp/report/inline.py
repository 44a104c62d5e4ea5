"""Inline Markdown of arbitrary text, escaped so that it cannot end a table cell or start an HTML element."""

from __future__ import annotations

import re

from pytest_amp.text.quoted import printable

#: Backslash that would escape the next character.
_ESCAPING = re.compile(r"\\(?=[!-/:-@\[-`{-~]|$)")
#: Start of an HTML entity.
_ENTITY = re.compile(r"&(?=[#A-Za-z])")
#: Boundary between a link's text and its address or label, and the start of a label's definition.
_LINK = re.compile(r"(?:^\[|\](?=[(\[]))")
#: Content that a code span between backticks cannot have in a table.
_BEYOND_BACKTICKS = re.compile(r"[`\\<&]|^ | $|^$")
#: Markup characters, also inside of an HTML element.
_MARKUP = re.compile(r"[&<>\"'|`*_\\\[\]~$]")

#: Issue or pull request, as data and expected failures name them.
ISSUE = re.compile(r"(?<![\w./-])(?P<repository>[A-Za-z0-9][\w-]*/[\w.-]+)#(?P<number>[0-9]+)\b")


def plain(text: object) -> str:
    """Return ``text`` with its markup escaped."""
    escaped = _ESCAPING.sub(r"\\\\", printable(str(text)))
    escaped = _ENTITY.sub("&amp;", escaped).replace("<", "&lt;")
    escaped = _LINK.sub(lambda match: "\\[" if match[0] == "[" else "]\\", escaped)
    return re.sub(r"([|`*])", r"\\\1", escaped)


def linked(text: object) -> str:
    """Return ``text`` with markup escaped and with links for issues and pull requests (``pytorch/pytorch#191142``)."""
    return ISSUE.sub(lambda match: f"[{match[0]}]({address(match)})", plain(text))


def address(issue: re.Match[str]) -> str:
    """Return the address of an issue; for a pull request, the site redirects it."""
    return f"https://github.com/{issue['repository']}/issues/{issue['number']}"


def code(text: object) -> str:
    """Return ``text`` as code."""
    line = printable(str(text))
    if not _BEYOND_BACKTICKS.search(line):
        return "`" + line.replace("|", "\\|") + "`"
    return f"<code>{_MARKUP.sub(lambda match: f'&#{ord(match[0])};', line)}</code>"
