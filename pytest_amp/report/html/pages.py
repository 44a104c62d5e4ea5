"""Pages of HTML for a run, for two records, or for a history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup, escape

from pytest_amp.record import (
    FAILING,
    ORDER,
    Better,
    Difference,
    Observation,
    Record,
    Trend,
    Value,
    Verdict,
    as_gone,
    finite,
    flattened,
    judged,
)
from pytest_amp.report import difference as differences
from pytest_amp.report import trend as trends
from pytest_amp.report.causes import Cause, by_standing, causes, failed, remark
from pytest_amp.report.cells import TITLES, by_reason, legend, short, together, told_commands, valued
from pytest_amp.report.commands import of_difference as of_commands
from pytest_amp.report.findings import FindingText
from pytest_amp.report.html.plots import Plot, plots
from pytest_amp.report.inline import ISSUE, address
from pytest_amp.text.quoted import printable

if TYPE_CHECKING:
    from pytest_amp.run.session import AmpSession


@dataclass(frozen=True)
class Section:
    """Table with its heading; ``kind`` is a verdict's value, which colours it."""

    title: str
    kind: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    opened: bool = True


@dataclass(frozen=True)
class Card:
    """Card of a cause: each of ``parts`` is a label, a text, and whether that is a command.

    ``findings`` link to the pages of their kinds.
    """

    title: str
    count: str
    parts: Sequence[tuple[str, str, bool]]
    findings: Sequence[FindingText] = ()


@dataclass(frozen=True)
class Page:
    """Content of the template, top to bottom. ``rows`` is the table with filters."""

    title: str
    red: bool | None
    facts: Sequence[str]
    alarms: Sequence[str]
    tiles: Sequence[tuple[str, int, str]]
    sections: Sequence[Section]
    plots: Sequence[Plot]
    rows: Sequence[Sequence[Value]]
    provenance: Section
    extra: Sequence[Section] = field(default=())
    causes: Sequence[tuple[str, Sequence[Card]]] = field(default=())


def of_difference(found: Difference) -> str:
    """Return the page of two compared records."""
    known = differences.why(found)
    old, new = (differences.run(record.provenance) for record in (found.old, found.new))
    groups = {verdict: found.of(verdict) for verdict in ORDER}
    by_key = {each.key: each for each in found.observations}
    before = found.old.by_key()
    now = [by_key.get(each.key, _beside(each, before.get(each.key))) for each in found.new.observations]
    return _render(
        Page(
            title=f"{old} → {new}",
            red=bool(found.gaps) or any(groups[verdict] for verdict in FAILING),
            facts=[differences.counts(found), *legend(found.observations)],
            alarms=differences.notes(found),
            tiles=_tiles(groups, found.same),
            sections=_sections(groups, known, of_commands(found)),
            plots=plots(now, found.observations, found.new.failures),
            rows=_rows(found.observations, known),
            provenance=_provenances([found.old, found.new], ["old", "new"]),
        )
    )


def of_trend(found: Trend) -> str:
    """Return the page of a history; its differences are those of the last record from the first."""
    whole = found.whole
    known = differences.why(whole)
    names = [differences.run(record.provenance) for record in found.records]
    groups = {verdict: whole.of(verdict) for verdict in ORDER}
    steps = Section("steps", "", ("from and to", ""), trends.steps(found))
    moved = [
        (each.key, each.worst.value, *("" if value is None else short(value, trends.LETTERS) for value in each.values))
        for each in found.moved
    ]
    history = Section(f"what moved, in each record ({len(moved)})", "", ("key", "", *names), moved, opened=False)
    return _render(
        Page(
            title=f"{names[0]} → {names[-1]}, {len(names)} records",
            red=bool(whole.gaps) or any(groups[verdict] for verdict in FAILING),
            facts=[differences.counts(whole), *legend(whole.observations)],
            alarms=differences.notes(whole),
            tiles=_tiles(groups, whole.same),
            sections=[steps, history, *_sections(groups, known, of_commands(whole))],
            plots=plots(whole.new.observations, whole.observations, whole.new.failures),
            rows=_rows(whole.observations, known),
            provenance=_provenances(found.records, [str(number) for number in range(1, len(names) + 1)]),
        )
    )


def of_run(session: AmpSession, record: Record) -> str:
    """Return the page of a run, with all its observations."""
    from pytest_amp.report.terminal import lived_with, reasons_of

    failures = session.tally.failures
    red = bool(failures or session.problems or not record.complete)
    groups = session.differences() if session.baseline is not None else {}
    # A run keeps a gone observation as the baseline's own.
    gone = [as_gone(each) for each in groups.get(Verdict.GONE, ())]
    groups = {**groups, Verdict.GONE: gone} if groups else {}
    differing = [each for group in groups.values() for each in group]
    known = reasons_of(session, differing)
    compared = [f"compared with torch {_torch(session.baseline)}"] if session.baseline is not None else []
    ran = [
        (target, family, ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
        for (target, family), counts in sorted(session.tally.outcomes.items())
    ]
    rest = [("not run", why, str(count)) for why, count in sorted(session.deselected.items())]
    failing = failed(session)
    title = f"tests that failed ({len(failing)})"
    tests = Section(title, Verdict.FAILED.value, ("test", "why"), failing, opened=False)
    return _render(
        Page(
            title=f"pytest-amp: {'red' if red else 'green'} on torch {record.provenance.get('torch')}",
            red=red,
            facts=[f"{len(record.observations)} observations", *compared, *legend(record.observations)],
            causes=_cards(causes(session)),
            alarms=[
                *(line for line in [remark()] if line is not None),
                *session.problems,
                *session.notes,
                *differences.of_other_revision(session.revised),
                *(f"known: {line}" for line in lived_with(session)),
            ],
            tiles=_tiles(groups, _same(record) if session.baseline is not None else None),
            sections=[*([tests] if failing else []), *_sections(groups, known)],
            plots=plots(record.observations, differing, record.failures),
            rows=_rows(sorted([*record.observations, *gone], key=_worst_first), known),
            provenance=_provenances([record], [""]),
            extra=[Section("what ran", "", ("device and dtype", "family", "ran"), [*ran, *rest])],
        )
    )


def _same(record: Record) -> int:
    """Return how many of a compared run's observations equal the baseline's."""
    return sum(judged(each) for each in record.observations if each.verdict not in ORDER)


def _worst_first(each: Observation) -> tuple[int, str]:
    return ORDER.index(each.verdict) if each.verdict in ORDER else len(ORDER), each.key


def _torch(record: Record | None) -> Value:
    return "unknown" if record is None else record.provenance.get("torch", "unknown")


def _beside(each: Observation, before: Observation | None) -> Observation:
    """Return an unchanged observation with its earlier value, since a plot shows both."""
    return each if before is None else replace(each, baseline=before.value)


def _tiles(groups: Mapping[Verdict, Sequence[Observation]], same: int | None) -> list[tuple[str, int, str]]:
    tiles = [(TITLES[verdict], len(groups[verdict]), verdict.value) for verdict in ORDER if groups.get(verdict)]
    return [*tiles, *([("the same", same, "pass")] if same is not None else [])]


def _sections(
    groups: Mapping[Verdict, Sequence[Observation]],
    known: Mapping[str, str],
    commands: Mapping[str, str] | None = None,
) -> list[Section]:
    """Return the sections of differences; failing ones are open."""
    sections = []
    for verdict in ORDER:
        group = groups.get(verdict)
        if group:
            rows = _rows_by_reason(verdict, group, known, commands or {})
            title = f"{TITLES[verdict]} ({len(group)})"
            sections.append(Section(title, verdict.value, ("key", "before", "now"), rows, opened=verdict in FAILING))
    return sections


def _rows_by_reason(
    verdict: Verdict, group: Sequence[Observation], known: Mapping[str, str], commands: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """Return rows of key, before and now, below a one-cell row for each reason; rows without a reason come first."""
    rows: list[tuple[str, ...]] = []
    for reason, those in by_reason(group, known).items():
        if reason or len(those) < len(group):
            rows.append((f"because {reason} ({len(those)})" if reason else f"without a known reason ({len(those)})",))
        if not reason:
            rows += [(f"find the release: {command}",) for command in told_commands(those, commands)]
        rows += [(row.key, row.before, row.now) for row in together(verdict, those)]
    return rows[:ROWS]


#: Maximum number of rows of a section: the table with filters has all.
ROWS = 200


def _rows(observations: Iterable[Observation], known: Mapping[str, str]) -> list[list[Value]]:
    """Return the columns: verdict, family, target, name, kind, now, before, share of the limit, reason, test."""
    return [
        [
            each.verdict.value,
            each.family,
            "-".join(each.target),
            each.name,
            each.kind.value,
            _sortable(each, each.value),
            _sortable(each, each.baseline),
            _share(each),
            known.get(each.key, ""),
            printable(each.test),
        ]
        for each in observations
    ]


def _sortable(each: Observation, value: Value) -> Value:
    """Return a number unchanged, so that it sorts numerically, and other values as short text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return finite(float(f"{value:.5g}"))
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**53 else str(value)[:80]
    return valued(each) if value is each.value else short(value)


def _share(each: Observation) -> Value:
    value = each.value
    if each.better is Better.HIGHER:  # the allowed value is a floor
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not each.allowed:
        return None
    try:
        return finite(round(value / each.allowed, 4))
    except OverflowError:
        return None


def _provenances(records: Sequence[Record], heads: Sequence[str]) -> Section:
    flat = [flattened(record.provenance) for record in records]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = [(name, *("" if each.get(name) is None else short(each[name], 400) for each in flat)) for name in names]
    return Section("where it ran" if len(records) == 1 else "where they ran", "", ("", *heads), rows, opened=False)


def _render(page: Page) -> str:
    folder = resources.files("pytest_amp.report.html")
    parts = {
        name: folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.html.j2", "page.css", "page.js")
    }
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    environment.filters["linked"] = _linked
    template = environment.from_string(parts["page.html.j2"])
    drawn = [Plot(plot.title, plot.note, Markup(plot.svg)) for plot in page.plots]  # noqa: S704  # escaped where it is made
    return template.render(
        page=page,
        plots=drawn,
        css=Markup(parts["page.css"]),  # noqa: S704  # a file of this package
        js=Markup(parts["page.js"]),  # noqa: S704  # see css
        data=Markup(_script_json({"rows": [*page.rows]})),  # noqa: S704  # see _script_json
        verdicts=[verdict.value for verdict in (*ORDER, Verdict.PASS)],
    )


def _linked(text: object) -> Markup:
    """Return text whose issues and pull requests are links."""
    line = printable(str(text))
    parts, end = [], 0
    for found in ISSUE.finditer(line):
        link = Markup('<a href="{}">{}</a>').format(address(found), found[0])
        parts += [escape(line[end : found.start()]), link]
        end = found.end()
    return Markup().join([*parts, escape(line[end:])])


def _cards(found: Iterable[Cause]) -> list[tuple[str, list[Card]]]:
    return [(standing.value, [_card(cause) for cause in group]) for standing, group in by_standing(found).items()]


def _card(cause: Cause) -> Card:
    likely = cause.parts.get("likely") if cause.reason is None else cause.reason
    texts = {label: text for label, text in cause.parts.items() if label not in ("likely", "rerun")}
    commands = {"rerun": cause.parts.get("rerun"), "bisect": cause.bisect}
    parts = [(label, text, False) for label, text in texts.items()]
    parts += [("likely", likely, False)] if likely is not None else []
    parts += [(label, text, True) for label, text in commands.items() if text is not None]
    return Card(cause.what, cause.count, parts, cause.findings)


def _shown(value: object) -> object:
    """Return a value as the template writes it: text without unprintable characters."""
    return printable(value) if type(value) is str else value


def _script_json(data: object) -> str:
    """Return JSON that cannot end its script element: ``</script`` and ``<!--`` have a meaning there."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
