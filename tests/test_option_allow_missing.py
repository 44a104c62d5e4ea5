"""--amp-allow-missing, the only way to turn a missing requirement into a skip."""

from __future__ import annotations

import pytest

from tests.project import SIMULATED, WITHOUT_FP16, Project, red, refused, summary

TEST = "def test_it(amp):\n    pass\n"


def test_run_with_an_allowed_missing_dtype_is_green(project: Project) -> None:
    project.write(conftest=SIMULATED + WITHOUT_FP16, test_it=TEST)
    arguments = ("--amp-device=simulated", "--amp-dtype=fp16")
    result = project.here(*arguments, "--amp-allow-missing=dtype")
    result.assert_outcomes(skipped=1)
    assert (result.ret, red(result)) == (0, [])
    assert any("missing, as --amp-allow-missing allows: --amp-dtype" in line for line in summary(result))
    refused(project.here(*arguments, "--amp-allow-missing=device,baseline,sweep,compiler,distributed"))


def test_option_allows_no_other_skips(project: Project) -> None:
    """An allowed skip on one target excuses no other target."""
    project.write(
        conftest=SIMULATED + WITHOUT_FP16, test_it="import pytest\n\n\ndef test_it(amp):\n    pytest.skip('no')"
    )
    result = project.here("--amp-device=simulated", "--amp-dtype=fp16,bf16", "--amp-allow-missing=dtype")
    assert result.ret == 1
    assert red(result) == ["project on simulated-bf16: 1 selected, not one executed: no (1)"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "nope",
            (
                "'nope' is not something that may be missing; expected device, dtype, baseline, sweep, compiler, "
                "distributed"
            ),
        ),
        ("device,", "'device,' has an empty name; expected a list with commas"),
    ],
)
def test_bad_value_is_refused(project: Project, value: str, problem: str) -> None:
    assert refused(project.here(f"--amp-allow-missing={value}")) == f"--amp-allow-missing (command line): {problem}"
