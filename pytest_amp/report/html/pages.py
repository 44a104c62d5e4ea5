"""Pages of HTML for a run, for two records, or for a history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

import jinja2
from markupsafe import Markup, escape

from pytest_amp.record import (
    FAILING,
    ORDER,
    Better,
    Difference,
    History,
    Observation,
    Record,
    Trend,
    Value,
    Verdict,
    finite,
    flattened,
)
from pytest_amp.report import differences
from pytest_amp.report import history as histories
from pytest_amp.report import trend as trends
from pytest_amp.report.causes import Cause, by_standing, causes, failed, remark
from pytest_amp.report.cells import TITLES, by_reason, legend, short, together, told_commands, valued
from pytest_amp.report.commands import of_difference as of_commands
from pytest_amp.report.faults import known_faults
from pytest_amp.report.findings import FindingText
from pytest_amp.report.html.plots import Plot, plots
from pytest_amp.report.inline import ISSUE, address
from pytest_amp.report.reasons import reasons_of
from pytest_amp.run.result import Run
from pytest_amp.text.amounts import counted
from pytest_amp.text.quoted import printable


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


def of_difference(difference: Difference) -> str:
    """Return the page of two compared records."""
    known = differences.why(difference)
    old, new = (differences.run(record.provenance) for record in (difference.old, difference.new))
    groups = difference.groups()
    by_key = {observation.key: observation for observation in difference.observations}
    before = difference.old.by_key()
    now = [
        by_key.get(observation.key, _with_earlier_value(observation, before.get(observation.key)))
        for observation in difference.new.observations
    ]
    return _render(
        Page(
            title=f"{old} → {new}",
            red=bool(difference.gaps) or any(groups[verdict] for verdict in FAILING),
            facts=[differences.counts(difference), *legend(difference.observations)],
            alarms=differences.notes(difference),
            tiles=_tiles(groups, difference.same),
            sections=_sections(groups, known, of_commands(difference)),
            plots=plots(now, difference.observations, difference.new.failures),
            rows=_observation_rows(difference.observations, known),
            provenance=_provenances([difference.old, difference.new], ["old", "new"]),
        )
    )


def of_trend(trend: Trend) -> str:
    """Return the page of a history; its differences are those of the last record from the first."""
    whole = trend.whole
    known = differences.why(whole)
    names = [differences.run(record.provenance) for record in trend.records]
    groups = whole.groups()
    steps = Section("steps", "", ("from and to", ""), trends.steps(trend))
    moved = [
        (row.key, row.worst.value, *("" if value is None else short(value, trends.LETTERS) for value in row.values))
        for row in trend.moved
    ]
    history = Section(f"what moved, in each record ({len(moved)})", "", ("key", "", *names), moved, opened=False)
    return _render(
        Page(
            title=f"{names[0]} → {names[-1]}, {counted(len(names), 'record')}",
            red=bool(whole.gaps) or any(groups[verdict] for verdict in FAILING),
            facts=[differences.counts(whole), *legend(whole.observations)],
            alarms=differences.notes(whole),
            tiles=_tiles(groups, whole.same),
            sections=[steps, history, *_sections(groups, known, of_commands(whole))],
            plots=plots(whole.new.observations, whole.observations, whole.new.failures),
            rows=_observation_rows(whole.observations, known),
            provenance=_provenances(trend.records, [str(number) for number in range(1, len(names) + 1)]),
        )
    )


def of_history(history: History) -> str:
    """Return the page of several releases: a table for each back end."""
    heads = ("", "dtype", *history.releases, "because")
    sections = []
    for back_end in history.back_ends:
        rows: list[tuple[str, ...]] = []
        group = ""
        for row in histories.rows_of(back_end):
            if row.group != group:
                rows.append((row.group,))
            group = row.group
            rows.append((row.name, ", ".join(row.dtypes), *(cell.text for cell in row.cells), "; ".join(row.reasons)))
        sections.append(Section(back_end.name, "", heads, rows))
    records = {
        release: record
        for index, release in enumerate(history.releases)
        for back_end in history.back_ends
        for row in back_end.records.values()
        if (record := row[index]) is not None
    }
    return _render(
        Page(
            title=f"torch {history.releases[0]} → {history.releases[-1]}, {counted(len(history.releases), 'release')}",
            red=None,
            facts=[histories.LEGEND_OF_TEXT],
            alarms=[],
            tiles=[],
            sections=sections,
            plots=[],
            rows=[],
            provenance=_provenances([*records.values()], [*records]),
        )
    )


def of_run(run: Run) -> str:
    """Return the page of a run, with all its observations."""
    record, difference = run.record, run.difference
    differing = [] if difference is None else [*difference.observations]
    groups = {} if difference is None else difference.groups()
    known = {} if difference is None else reasons_of(difference, run.torch)
    compared = (
        [] if difference is None else [f"compared with torch {difference.old.provenance.get('torch', 'unknown')}"]
    )
    gone = groups.get(Verdict.GONE, [])
    ran = [
        (target, family, ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
        for (target, family), counts in sorted(run.counts.items())
    ]
    rest = [("not run", reason, str(count)) for reason, count in sorted(run.deselected.items())]
    failing = failed(run)
    title = f"tests that failed ({len(failing)})"
    tests = Section(title, Verdict.FAILED.value, ("test", "why"), failing, opened=False)
    return _render(
        Page(
            title=f"pytest-amp: {'red' if run.is_red else 'green'} on torch {record.provenance.get('torch')}",
            red=run.is_red,
            facts=[counted(len(record.observations), "observation"), *compared, *legend(record.observations)],
            causes=_cards(causes(run)),
            alarms=[
                *(line for line in [remark(run.torch)] if line is not None),
                *run.problems,
                *run.notes,
                *differences.of_other_revision({} if difference is None else difference.revised),
                *(f"known: {line}" for line in known_faults(run)),
            ],
            tiles=_tiles(groups, None if difference is None else difference.same),
            sections=[*([tests] if failing else []), *_sections(groups, known)],
            plots=plots(record.observations, differing, record.failures),
            rows=_observation_rows(sorted([*record.observations, *gone], key=_worst_first), known),
            provenance=_provenances([record], [""]),
            extra=[Section("what ran", "", ("device and dtype", "family", "ran"), [*ran, *rest])],
        )
    )


def _worst_first(observation: Observation) -> tuple[int, str]:
    return ORDER.index(observation.verdict) if observation.verdict in ORDER else len(ORDER), observation.key


def _with_earlier_value(observation: Observation, before: Observation | None) -> Observation:
    """Return an unchanged observation with its earlier value, since a plot shows both."""
    return observation if before is None else replace(observation, baseline=before.value)


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


def _observation_rows(observations: Iterable[Observation], known: Mapping[str, str]) -> list[list[Value]]:
    """Return the columns: verdict, family, target, name, kind, now, before, share of the limit, reason, test."""
    return [
        [
            observation.verdict.value,
            observation.family,
            observation.place,
            observation.name,
            observation.kind.value,
            _sortable(observation, observation.value),
            _sortable(observation, observation.baseline),
            _share(observation),
            known.get(observation.key, ""),
            printable(observation.test),
        ]
        for observation in observations
    ]


def _sortable(observation: Observation, value: Value) -> Value:
    """Return a number unchanged, so that it sorts numerically, and other values as short text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return finite(float(f"{value:.5g}"))
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**53 else str(value)[:80]
    return valued(observation) if value is observation.value else short(value)


def _share(observation: Observation) -> Value:
    value = observation.value
    if observation.better is Better.HIGHER:  # the allowed value is a floor
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not observation.allowed:
        return None
    try:
        return finite(round(value / observation.allowed, 4))
    except OverflowError:
        return None


def _provenances(records: Sequence[Record], heads: Sequence[str]) -> Section:
    flat = [flattened(record.provenance) for record in records]
    names = dict.fromkeys(name for facts in flat for name in facts)
    rows = [(name, *("" if facts.get(name) is None else short(facts[name], 400) for facts in flat)) for name in names]
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
    for issue in ISSUE.finditer(line):
        link = Markup('<a href="{}">{}</a>').format(address(issue), issue[0])
        parts += [escape(line[end : issue.start()]), link]
        end = issue.end()
    return Markup().join([*parts, escape(line[end:])])


def _cards(causes: Iterable[Cause]) -> list[tuple[str, list[Card]]]:
    return [(standing.value, [_card(cause) for cause in group]) for standing, group in by_standing(causes).items()]


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
