"""Inline Markdown of text that somebody else wrote: it ends no cell and no row, and begins no element of HTML."""

from __future__ import annotations

import re

from pytest_amp.quoted import printable

#: A backslash that would escape what follows it.
_ESCAPING = re.compile(r"\\(?=[!-/:-@\[-`{-~]|$)")
#: What begins an entity of HTML.
_ENTITY = re.compile(r"&(?=[#A-Za-z])")
#: Between a link's text and its address or label; and what begins the definition of a label.
_LINK = re.compile(r"(?:^\[|\](?=[(\[]))")
#: What no code span between backticks can have in a table.
_BEYOND_BACKTICKS = re.compile(r"[`\\<&]|^ | $|^$")
#: What is markup, within an element of HTML, too.
_MARKUP = re.compile(r"[&<>\"'|`*_\\\[\]~$]")

#: An issue or a pull request, as data and expected failures name them.
ISSUE = re.compile(r"(?<![\w./-])(?P<repository>[A-Za-z0-9][\w-]*/[\w.-]+)#(?P<number>[0-9]+)\b")


def plain(text: object) -> str:
    """``text`` as it stands, without its markup."""
    escaped = _ESCAPING.sub(r"\\\\", printable(str(text)))
    escaped = _ENTITY.sub("&amp;", escaped).replace("<", "&lt;")
    escaped = _LINK.sub(lambda found: "\\[" if found[0] == "[" else "]\\", escaped)
    return re.sub(r"([|`*])", r"\\\1", escaped)


def linked(text: object) -> str:
    """``text`` as it stands, in which issues and pull requests (``pytorch/pytorch#191142``) are links."""
    return ISSUE.sub(lambda found: f"[{found[0]}]({address(found)})", plain(text))


def address(issue: re.Match[str]) -> str:
    """Where an issue or a pull request is: the site leads from the one to the other."""
    return f"https://github.com/{issue['repository']}/issues/{issue['number']}"


def code(text: object) -> str:
    """``text`` as code."""
    line = printable(str(text))
    if not _BEYOND_BACKTICKS.search(line):
        return "`" + line.replace("|", "\\|") + "`"
    return f"<code>{_MARKUP.sub(lambda found: f'&#{ord(found[0])};', line)}</code>"
