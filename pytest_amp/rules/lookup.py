"""The spec's rules of an operator on every device type, formatted for readers; it needs no torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from pytest_amp.rules.spec import SPEC_FILE, Rule, Spec

#: Descriptions of the rules for the documentation.
MEANINGS = {
    "lower_precision_fp": "floating-point arguments are cast to the autocast dtype",
    "fp32": "floating-point arguments are cast to float32",
    "fp32_set_opt_dtype": "arguments are not cast; `dtype=torch.float32` is passed unless the caller gave a dtype",
    "fp32_append_dtype": "arguments are not cast; the overload with a dtype argument is called, with float32",
    "promote": "floating-point arguments are cast to the widest of their dtypes",
    "banned": "refused with a RuntimeError that names the alternative",
}


def matching(spec: Spec, pattern: str) -> list[str]:
    """Return the overloads that match ``pattern``: a name, all overloads of a name, or a shell pattern over both.

    ``softmax`` matches all overloads of softmax, such as ``softmax.int``, but not ``log_softmax``; ``*norm*`` matches
    all names that contain norm.
    """
    name_pattern = pattern.removeprefix("torch.").removeprefix("aten::")
    names = {_short(name) for rules in spec.rules.values() for name in rules}
    matches = [name for name in names if any(fnmatch.fnmatchcase(text, name_pattern) for text in (name, _packet(name)))]
    return sorted(matches, key=lambda name: (name.lstrip("_"), name))


def turns(spec: Spec, overload: str, device_type: str) -> tuple[Rule, ...]:
    """Return the rules that an overload (``softmax.int``) has had on a device type, newest last."""
    return spec.rules[device_type].get(overload if "::" in overload else f"aten::{overload}", ())


def as_text(spec: Spec, overloads: Iterable[str], device_types: Sequence[str]) -> str:
    """Format a block for each overload, with a line for each device type and rule."""
    blocks = []
    for overload in overloads:
        rows = [row for device_type in device_types for row in _rows(spec, overload, device_type)]
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        blocks.append("\n".join([overload, *(f"  {line}".rstrip() for line in lines)]))
    return "\n\n".join(blocks)


def _rows(spec: Spec, overload: str, device_type: str) -> list[tuple[str, str, str, str]]:
    rules = turns(spec, overload, device_type)
    rows = [
        (device_type, _label(r), f"since torch {_since(spec, r, device_type)}", "; ".join(_notes(r))) for r in rules
    ]
    return rows or [(device_type, "none", "", "")]


def as_markdown(spec: Spec) -> str:
    """Format the page with the whole table: a row for each overload, a column for each device type."""
    devices = list(spec.device_types)
    overloads = matching(spec, "*")
    lines = [
        "# What autocast does with each operator",
        "",
        "For users who look up an operator: autocast's rule for it on each device type,",
        f"in torch {spec.first} to {spec.last}. `pytest-amp rules softmax` prints one operator.",
        f"`pytest-amp rules --format=md` generates this page from `{SPEC_FILE}`: edit that file, not the page.",
        "",
        "An overload without a row, or with an empty cell, has no rule there: it runs in the dtypes of its arguments.",
        "In-place and `out=` overloads have no rule anywhere. The names of the rules are PyTorch's own:",
        "",
        *(f"- `{name}`: {text}" for name, text in MEANINGS.items()),
        "",
        f"| device type | autocast since torch | overloads with a rule in torch {spec.last} |",
        "|---|---|---|",
        *(f"| {name} | {spec.introduced[name]} | {len(spec.expected(name, spec.last))} |" for name in devices),
        "",
        "In brackets: the first release with the rule, where that is later than the device type's, and the last one.",
        "",
        f"| overload | {' | '.join(devices)} |",
        f"|---|{'---|' * len(devices)}",
    ]
    for overload in overloads:
        cells = ["<br>".join(_cell(rule) for rule in turns(spec, overload, device)) for device in devices]
        lines.append(f"| `{overload}` | {' | '.join(cells)} |")
    lines += ["", "## Sources and notes", "", *_page_notes(spec, overloads)]
    return "\n".join([*lines, ""])


def _page_notes(spec: Spec, overloads: Iterable[str]) -> list[str]:
    """List each note, and each source that is not the usual one of its device type, with its operators."""
    notes: dict[str, list[str]] = {}
    for overload in overloads:
        for device_type in spec.device_types:
            usual = turns(spec, "mm", device_type)[0].source
            for rule in turns(spec, overload, device_type):
                for note in (*_notes(rule), *([rule.source] if rule.source != usual else [])):
                    concerned = notes.setdefault(note, [])
                    if f"`{overload}`" not in concerned:
                        concerned.append(f"`{overload}`")
    return [f"- {', '.join(concerned)}: {note}." for note, concerned in sorted(notes.items())]


def _cell(rule: Rule) -> str:
    bounds = [f"since {rule.since}"] * (rule.since is not None) + [f"until {rule.until}"] * (rule.until is not None)
    return f"`{_label(rule)}`" + (f" ({', '.join(bounds)})" if bounds else "")


def _since(spec: Spec, rule: Rule, device_type: str) -> str:
    since = rule.since or spec.introduced[device_type]
    return since if rule.until is None else f"{since}, until {rule.until}"


def _label(rule: Rule) -> str:
    return rule.name.value if rule.dtype is None else f"{rule.name.value} in {rule.dtype}"


def _notes(rule: Rule) -> tuple[str, ...]:
    return tuple(note for note in (rule.may_be_absent, rule.own_kernel) if note is not None)


def _short(name: str) -> str:
    return name.removeprefix("aten::")


def _packet(overload: str) -> str:
    return overload.partition(".")[0]
