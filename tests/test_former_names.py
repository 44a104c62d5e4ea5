"""Former names: they work for a release, and warn at the caller's line; both names at once are refused."""

from __future__ import annotations

import inspect

import pytest

from pytest_amp.amp import Amp
from pytest_amp.amp.deprecated import renamed_keywords
from tests.project import Project

CASE = """
import torch


def case(amp):
    return amp.case(lambda: torch.nn.Linear(4, 4), lambda: torch.randn(2, 4), lambda m, x: m(x).float().square().mean())


def test_it(amp):
    {line}
"""
#: Calls of the methods with a former name, and the current one.
FORMER = {
    "check_scaler(case(amp), overflow_at=(3,))": "overflow_gradients_at",
    "check_scaler(case(amp), forward_at=())": "overflow_activations_at",
    "check_scaler(case(amp), spoilt=())": "nonfinite_buffers",
    "scaler_trace(case(amp), steps=3, overflow_at=(1,))": "overflow_gradients_at",
    "check_speedup(case(amp), over='fp32')": "versus",
}


@pytest.mark.parametrize(("call", "current"), FORMER.items(), ids=lambda text: text.partition("(")[0])
def test_former_name_warns_at_the_callers_line(project: Project, call: str, current: str) -> None:
    project.write(test_it=CASE.format(line=f"amp.{call}"))
    result = project.here("--amp-device=cpu", "--amp-dtype=fp16", "--amp-speed=off", "-W", "default")
    assert result.ret in (0, 1)
    method, former = call.partition("(")[0], call.rpartition(", ")[2].partition("=")[0]
    says = f"DeprecationWarning: {method}({former}=) is called {current}=; the next release has no {former}="
    place = next(text for text in result.outlines if says in text).strip()
    line = CASE.strip().splitlines().index("    {line}") + 1
    assert place.replace("\\", "/").rpartition("/")[2].startswith(f"test_it.py:{line}: ")
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) == 0
    assert outcomes["skipped" if method == "check_speedup" else "passed"] == 1


def test_former_name_does_what_the_current_one_does(project: Project) -> None:
    lines = (
        "one = amp.scaler_trace(case(amp), steps=4, overflow_gradients_at=(2,), growth_interval=2)",
        "assert [step.skipped for step in one] == [False, False, True, False]",
        "with __import__('pytest').warns(DeprecationWarning):",
        "    two = amp.scaler_trace(case(amp), steps=4, overflow_at=(2,), growth_interval=2)",
        "assert one == two",
    )
    project.write(test_it=CASE.format(line="\n    ".join(lines)))
    project.here("--amp-device=cpu", "--amp-dtype=fp16").assert_outcomes(passed=1)


@pytest.mark.parametrize("method", ["check_scaler", "scaler_trace", "check_speedup"])
def test_signature_has_current_names_only(method: str) -> None:
    names = inspect.signature(getattr(Amp, method)).parameters
    assert not {"overflow_at", "forward_at", "spoilt", "over"} & names.keys()
    assert {"overflow_gradients_at", "versus"} & names.keys()


def test_former_and_current_name_at_once_are_refused(project: Project) -> None:
    project.write(test_it=CASE.format(line="amp.check_speedup(case(amp), over='fp32', versus='tf32')"))
    result = project.here("--amp-device=cpu", "--amp-dtype=fp16")
    result.assert_outcomes(failed=1)
    (shown,) = [text for text in result.outlines if text.startswith("E  ")]
    assert shown.endswith(": check_speedup has over= and versus=, its new name; expected versus= alone")
    assert not any("pytest_amp/" in text for text in result.outlines)


def test_renamed_keywords_replaces_a_name_in_any_method() -> None:
    @renamed_keywords(old="new")
    def method(*, new: int = 0) -> int:
        """Return the argument."""
        return new

    with pytest.warns(DeprecationWarning, match="^method\\(old=\\) is called new=") as warned:
        assert method(old=3) == 3  # type: ignore[call-arg]
    assert [warning.filename for warning in warned] == [__file__]
    assert method(new=4) == 4
    assert method.__doc__ == "Return the argument."
