"""Cells, rows and tables of a report, from values and observations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass

from pytest_amp.record import FAILING, ORDER, Kind, Observation, Value, Verdict
from pytest_amp.report.inline import code, linked, plain
from pytest_amp.text.quoted import printable

#: Titles of groups of differing observations.
TITLES = {
    Verdict.FAILED: "tests that fail now",
    Verdict.REGRESSED: "worse",
    Verdict.CHANGED: "changed",
    Verdict.GONE: "gone",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.OBSERVED: "could not be observed before",
    Verdict.NEW: "new",
    Verdict.IMPROVED: "better",
    Verdict.FIXED: "fixed upstream",
}


def titled(count: int, verdict: Verdict) -> str:
    """Return a number of differing observations: ``1 test that fails now``, ``2 worse``."""
    return "1 test that fails now" if count == 1 and verdict is Verdict.FAILED else f"{count} {TITLES[verdict]}"


#: Legend of a value of the family fingerprint (docs/reference/fingerprint.md), which is not self-explanatory.
FINGERPRINT = (
    "a fingerprint is the result of float32 and of low-precision inputs, without autocast | with it: "
    "= is the same as without, low is autocast's dtype, x8 is of eight samples"
)


def legend(observations: Iterable[Observation]) -> list[str]:
    """Return the legend that a reader of these values needs."""
    return [FINGERPRINT] * any(
        observation.family == "fingerprint" and observation.kind is Kind.DTYPE for observation in observations
    )


#: Maximum number of commands shown for unexplained differences.
COMMANDS = 5
#: Maximum number of rows of one kind: in a terminal's summary, in the text of a difference (of one family) and of a
#: history, and on a page.
SUMMARY_ROWS, DIFFERENCE_ROWS, HISTORY_ROWS, PAGE_ROWS = 20, 25, 50, 100


def and_more(rows: Sized, most: int, noun: str = "") -> list[str]:
    """Return the line ``and 3 more`` for the rows beyond ``most``; empty without any."""
    return [f"and {len(rows) - most} more {noun}".rstrip()] if len(rows) > most else []


def told_commands(those: Iterable[Observation], commands: Mapping[str, str]) -> list[str]:
    """Return the commands for these observations without duplicates, at most COMMANDS of them."""
    unique = dict.fromkeys(commands[observation.key] for observation in those if observation.key in commands)
    return [*unique][:COMMANDS]


def tables(
    groups: Mapping[Verdict, Sequence[Observation]], why: Mapping[str, str], commands: Mapping[str, str] | None = None
) -> list[str]:
    """Return a table of Markdown for each verdict with observations, worst first; failing ones are not folded.

    ``why`` has the known reasons, by key. Observations without a reason come first, and each reason has a table of its
    own. ``commands`` has the commands that find a release, by key: they are shown for observations without a reason.
    """
    lines: list[str] = []
    for verdict in ORDER:
        group = groups.get(verdict, ())
        if not group:
            continue
        title = f"{TITLES[verdict]} ({len(group)})"
        body = []
        for reason, those in by_reason(group, why).items():
            if reason:
                body += [f"because {linked(reason)}:", ""]
            elif any(observation.key in why for observation in group):
                body += ["without a known reason:", ""]
            rows = together(verdict, those)
            body += ["| key | before | now |", "|---|---|---|"]
            body += [f"| {code(row.key)} | {plain(row.before)} | {plain(row.now)} |" for row in rows]
            body.append("")
            shown = told_commands(those, commands or {}) if not reason else []
            body += [f"- find the release: {code(command)}" for command in shown] + [""] * bool(shown)
        body.pop()
        if verdict in FAILING:
            lines += ["", f"**{title}**", "", *body]
        else:
            lines += ["", f"<details><summary>{title}</summary>", "", *body, "", "</details>"]
    return lines


def by_reason(group: Iterable[Observation], why: Mapping[str, str]) -> dict[str, list[Observation]]:
    """Group observations by reason, in order of occurrence; those without one, under "", come first."""
    result: dict[str, list[Observation]] = {"": []}
    for observation in group:
        result.setdefault(why.get(observation.key, ""), []).append(observation)
    return {reason: those for reason, those in result.items() if those}


@dataclass(frozen=True)
class Row:
    """Row of one observation, or of several that differ only in device and dtype; for tests, of those with one cause.

    ``key`` is their common key, with braces as in a shell: ``rules/{cpu, cuda}/bf16/aten::mm``.
    """

    key: str
    before: str
    now: str


def together(verdict: Verdict, group: Iterable[Observation]) -> list[Row]:
    """Return the rows of these observations, in order of first occurrence."""
    rows: dict[tuple[str, ...], list[Observation]] = {}
    for observation in group:
        rows.setdefault(cause_of(verdict, observation), []).append(observation)
    return [
        Row(
            f"{observation.family}/{_places([one.target for one in those])}/{named(those)}",
            *_before_and_now(verdict, observation),
        )
        for those in rows.values()
        for observation in those[:1]
    ]


def cause_of(verdict: Verdict, observation: Observation) -> tuple[str, ...]:
    """Return the grouping key of observations: name and values, or the reason for which tests fail."""
    before, now = _before_and_now(verdict, observation)
    if verdict in (Verdict.FAILED, Verdict.FIXED):
        return observation.family, without_places(now)
    return observation.family, observation.name, before, now


def named(those: Sequence[Observation]) -> str:
    """Return the name of the first of several observations, and the number of remaining names."""
    remaining = len({observation.name for observation in those}) - 1
    return f"{those[0].name} and {remaining} more" if remaining else those[0].name


def _places(targets: Iterable[tuple[str, str]]) -> str:
    """Return devices and dtypes with braces as in a shell, factored if all combinations occur."""
    targets = list(dict.fromkeys(targets))
    devices, dtypes = ([*dict.fromkeys(names)] for names in zip(*targets, strict=True))
    if len(targets) == len(devices) * len(dtypes):
        return f"{_braced(devices)}/{_braced(dtypes)}"
    return _braced([f"{device}/{dtype}" for device, dtype in targets])


def _braced(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"


def _before_and_now(verdict: Verdict, observation: Observation) -> tuple[str, str]:
    """Return both values as text. A gone observation is the earlier one, or has its value as baseline."""
    was = observation.baseline if observation.verdict is verdict else observation.value
    unknown = verdict in (Verdict.FAILED, Verdict.FIXED) and was is None
    before = "" if verdict is Verdict.NEW or unknown else short(was)
    return before, "" if verdict is Verdict.GONE else f"{valued(observation)}{times(observation)}"


def valued(observation: Observation) -> str:
    """Return the value with its interval, with values over seeds, and with the unit of a user's measure."""
    text = short(observation.value)
    if observation.interval is not None:
        text += f" [{', '.join(f'{end:.3g}' for end in observation.interval)}]"
    if observation.over_seeds is not None and observation.verdict is not Verdict.NEW:
        text += f", over seeds {', '.join(f'{error:.3g}' for error in observation.over_seeds)}"
    return f"{text} {printable(observation.unit)}" if observation.unit and observation.kind is Kind.MEASURE else text


def times(observation: Observation) -> str:
    """Return the factor by which a number grew or shrank; empty for anything else."""
    before, now = observation.baseline, observation.value
    numbers = all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in (before, now))
    if observation.kind is not Kind.ERROR and observation.better is None:
        return ""
    if not numbers or not before or observation.verdict is Verdict.CHANGED:
        return ""
    try:
        ratio = now / before  # type: ignore[operator]  # both are numbers
    except OverflowError:
        return ""
    return f" ({float(f'{ratio:.2g}'):g} times)"


def short(value: Value, most: int = 160) -> str:
    """Return a value in at most ``most`` printable characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= most else f"{text[: most - 3]}…"


_PLACE = re.compile(
    r"\bautocast\(\w+, \w+\)|\b(?:fake[-:])?(?:cpu|cuda|xpu|mps|mtia|[a-z]\w*)-(?:bf16|fp16|fp32|tf32)\b"
    r"|\b(?:fake[-:])?(?:cpu|cuda|xpu|mps|mtia)\b|\bb?float16\b|\b(?:bf16|fp16)\b"
)


def without_places(what: str) -> str:
    """Return the text of a failure without device and dtype, equal for all failures of its cause."""
    return _PLACE.sub("", what)
