"""Values and observations as the cells, rows and tables of a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_amp.quoted import printable
from pytest_amp.record import FAILING, ORDER, Kind, Observation, Value, Verdict
from pytest_amp.report.inline import code, linked, plain
from pytest_amp.report.places import without_places

#: What observations that are not the same as before are called.
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


#: How a value of the family fingerprint is read (docs/fingerprint.md), which nobody can guess.
FINGERPRINT = (
    "a fingerprint is what float32 inputs and low ones give, without autocast | with it: "
    "= is the same as without, low is autocast's dtype, x8 is of eight samples"
)


def legend(observations: Iterable[Observation]) -> list[str]:
    """What a reader of these values has to know."""
    return [FINGERPRINT] * any(each.family == "fingerprint" and each.kind is Kind.DTYPE for each in observations)


#: Commands that are told of what has no reason.
COMMANDS = 5


def told_commands(those: Iterable[Observation], commands: Mapping[str, str]) -> list[str]:
    """The commands of these observations, each once; the first COMMANDS of them."""
    return [*dict.fromkeys(commands[each.key] for each in those if each.key in commands)][:COMMANDS]


def tables(
    groups: Mapping[Verdict, Sequence[Observation]], why: Mapping[str, str], commands: Mapping[str, str] | None = None
) -> list[str]:
    """A table of Markdown for each verdict that has observations, worst first; what fails stands open.

    ``why`` has the reasons that are known, by key. What has none comes first, and each reason has a table of its own.
    ``commands`` has the commands that find a release, by key: they are told of what has no reason.
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
            elif any(each.key in why for each in group):
                body += ["without a known reason:", ""]
            rows = together(verdict, those)
            body += ["| key | before | now |", "|---|---|---|"]
            body += [f"| {code(row.key)} | {plain(row.before)} | {plain(row.now)} |" for row in rows]
            body.append("")
            told = told_commands(those, commands or {}) if not reason else []
            body += [f"- find the release: {code(command)}" for command in told] + [""] * bool(told)
        body.pop()
        if verdict in FAILING:
            lines += ["", f"**{title}**", "", *body]
        else:
            lines += ["", f"<details><summary>{title}</summary>", "", *body, "", "</details>"]
    return lines


def by_reason(group: Iterable[Observation], why: Mapping[str, str]) -> dict[str, list[Observation]]:
    """The observations of each reason, in the order of its first; those without one, under "", come first."""
    found: dict[str, list[Observation]] = {"": []}
    for each in group:
        found.setdefault(why.get(each.key, ""), []).append(each)
    return {reason: those for reason, those in found.items() if those}


@dataclass(frozen=True)
class Row:
    """What one observation became, or several that differ in nothing but device and dtype; of tests those of one cause.

    ``key`` is theirs, with braces as in a shell: ``rules/{cpu, cuda}/bf16/aten::mm``.
    """

    key: str
    before: str
    now: str


def together(verdict: Verdict, group: Iterable[Observation]) -> list[Row]:
    """The rows of these observations, in the order of the first of each."""
    rows: dict[tuple[str, ...], list[Observation]] = {}
    for each in group:
        rows.setdefault(cause_of(verdict, each), []).append(each)
    return [
        Row(f"{each.family}/{_places([one.target for one in those])}/{named(those)}", *_before_and_now(verdict, each))
        for those in rows.values()
        for each in those[:1]
    ]


def cause_of(verdict: Verdict, observation: Observation) -> tuple[str, ...]:
    """Return what observations share that are told together: name and values, or the reason for which tests fail."""
    before, now = _before_and_now(verdict, observation)
    if verdict in (Verdict.FAILED, Verdict.FIXED):
        return observation.family, without_places(now)
    return observation.family, observation.name, before, now


def named(those: Sequence[Observation]) -> str:
    """Return the name of the first of several observations, and how many other names there are."""
    others = len({each.name for each in those}) - 1
    return f"{those[0].name} and {others} more" if others else those[0].name


def _places(targets: Iterable[tuple[str, str]]) -> str:
    """Devices and dtypes as a shell would write them, where each of one has each of the other."""
    targets = list(dict.fromkeys(targets))
    devices, dtypes = ([*dict.fromkeys(names)] for names in zip(*targets, strict=True))
    if len(targets) == len(devices) * len(dtypes):
        return f"{_braced(devices)}/{_braced(dtypes)}"
    return _braced([f"{device}/{dtype}" for device, dtype in targets])


def _braced(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"


def _before_and_now(verdict: Verdict, observation: Observation) -> tuple[str, str]:
    """The two values as text. What has gone is the earlier observation, or has its value as baseline."""
    was = observation.baseline if observation.verdict is verdict else observation.value
    unknown = verdict in (Verdict.FAILED, Verdict.FIXED) and was is None
    before = "" if verdict is Verdict.NEW or unknown else short(was)
    return before, "" if verdict is Verdict.GONE else f"{valued(observation)}{times(observation)}"


def valued(observation: Observation) -> str:
    """The value, with its interval and unit where it is a number of somebody's own."""
    text = short(observation.value)
    if observation.interval is not None:
        text += f" [{', '.join(f'{end:.3g}' for end in observation.interval)}]"
    if observation.over_seeds is not None and observation.verdict is not Verdict.NEW:
        text += f", over seeds {', '.join(f'{each:.3g}' for each in observation.over_seeds)}"
    return f"{text} {printable(observation.unit)}" if observation.unit and observation.kind is Kind.MEASURE else text


def times(observation: Observation) -> str:
    """By how much a number grew or shrank."""
    before, now = observation.baseline, observation.value
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (before, now))
    if observation.kind is not Kind.ERROR and observation.better is None:
        return ""
    if not numbers or not before or observation.verdict is Verdict.CHANGED:
        return ""
    try:
        ratio = now / before  # type: ignore[operator]  # numbers
    except OverflowError:
        return ""
    return f" ({float(f'{ratio:.2g}'):g} times)"


def short(value: Value, most: int = 160) -> str:
    """A value in few printable characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= most else f"{text[: most - 3]}…"
