"""Torch state that a test leaves changed is named and restored, and the test fails."""

from __future__ import annotations

import re

import pytest

from tests.project import ON_CPU, Project

#: State that a test might leave changed, and its name in the message.
LEAKS = {
    "torch.set_autocast_enabled('cpu', True)": "autocast enabled (cpu): False became True",
    "torch.set_autocast_enabled('cuda', True)": "autocast enabled (cuda): False became True",
    "torch.set_autocast_enabled('xpu', True)": "autocast enabled (xpu): False became True",
    "torch.set_autocast_enabled('mps', True)": "autocast enabled (mps): False became True",
    "torch.set_autocast_dtype('cpu', torch.float16)": "autocast dtype (cpu): torch.bfloat16 became torch.float16",
    "torch.set_autocast_dtype('cuda', torch.bfloat16)": "autocast dtype (cuda): torch.float16 became torch.bfloat16",
    "torch.set_autocast_cache_enabled(False)": "autocast cache: True became False",
    "torch.autocast_increment_nesting()": "autocast nesting depth: 0 became 1",
    "torch.autocast('cpu', torch.bfloat16).__enter__()": "autocast nesting depth: 0 became 1",
    "torch.set_default_dtype(torch.float64)": "default dtype: torch.float32 became torch.float64",
    "torch.set_default_device('meta')": "default device: cpu became meta",
    "torch.set_grad_enabled(False)": "grad mode: True became False",
    "torch.no_grad().__enter__()": "grad mode: True became False",
    "torch.autograd.set_detect_anomaly(True)": "anomaly mode: False became True",
    "torch.use_deterministic_algorithms(True)": "deterministic algorithms: (False, False) became (True, False)",
    "torch.use_deterministic_algorithms(True, warn_only=True)": "(False, False) became (True, True)",
    "setattr(torch.backends.cudnn, 'deterministic', True)": "cudnn deterministic: False became True",
    "setattr(torch.backends.cudnn, 'benchmark', True)": "cudnn benchmark: False became True",
    "setattr(torch.backends.cudnn, 'enabled', False)": "cudnn enabled: True became False",
    "setattr(torch.backends.cuda.matmul, 'allow_fp16_reduced_precision_reduction', False)": "reduction (fp16): ",
    "setattr(torch.backends.cuda.matmul, 'allow_bf16_reduced_precision_reduction', False)": "reduction (bf16): ",
    "torch.backends.cuda.enable_flash_sdp(False)": "attention kernel (flash): True became False",
    "torch.backends.cuda.enable_math_sdp(False)": "attention kernel (math): True became False",
    "torch.set_float32_matmul_precision('high')": "float32 matmul precision: highest became high",
    "torch.set_float32_matmul_precision('medium')": "float32 matmul precision: highest became medium",
    "setattr(torch.backends.cuda.matmul, 'allow_tf32', True)": "cuda matmul): ",
    "setattr(torch.backends.cudnn, 'allow_tf32', False)": "cudnn",
}
#: A setting that torch 2.7 added.
ACCUMULATION = {
    "setattr(torch.backends.cuda.matmul, 'allow_fp16_accumulation', True)": "fp16 accumulation: False became True"
}
#: Settings that torch 2.9 added.
NEWER = {
    "setattr(torch.backends, 'fp32_precision', 'ieee')": "fp32 precision: ",
    "setattr(torch.backends.cuda.matmul, 'fp32_precision', 'tf32')": "fp32 precision (cuda matmul): ",
    "setattr(torch.backends.cudnn.conv, 'fp32_precision', 'ieee')": "fp32 precision (cudnn conv): ",
    "setattr(torch.backends.cudnn.rnn, 'fp32_precision', 'ieee')": "fp32 precision (cudnn rnn): ",
    "setattr(torch.backends.mkldnn.matmul, 'fp32_precision', 'bf16')": "fp32 precision (mkldnn matmul): ",
}
TEST = """
import pytest
import torch

from pytest_amp.run.state_guard import settings

LEAKS = {leaks!r}


def state():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {{setting.name: setting.get() for setting in settings()}}


BEFORE = state()


@pytest.mark.parametrize("n", range(len(LEAKS)))
def test_leak(n, amp):
    threads = torch.get_num_threads()
    now = state()
    assert now.pop("CPU threads") == 1
    assert now == {{name: value for name, value in BEFORE.items() if name != "CPU threads"}}
    eval(LEAKS[n])


def test_after_all():
    assert state() == BEFORE
"""


def test_leaked_state_is_reported_and_restored(project: Project) -> None:
    import torch

    leaks = dict(LEAKS)
    if hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation"):
        leaks |= ACCUMULATION
    if hasattr(torch.backends, "fp32_precision"):
        leaks |= NEWER
    project.write(test_it=TEST.format(leaks=list(leaks)))
    result = project.apart(*ON_CPU, "-p", "no:randomly", "-rE")
    result.assert_outcomes(passed=len(leaks) + 1, errors=len(leaks))
    assert result.ret == 1
    actual = _messages(result)
    for number, (leak, message) in enumerate(leaks.items()):
        assert actual[number].startswith("AmpFailure: the test left torch's state changed (restored now): "), leak
        assert message in actual[number], leak


def test_cached_casts_of_an_open_region_are_cleared(project: Project) -> None:
    """Clear the cached casts of a region that was never left, which the next region would use."""
    project.write(
        test_it="""
import torch

weight = torch.nn.Parameter(torch.ones(2, 2))


def product(amp):
    region = amp.autocast()
    region.__enter__()
    return region, torch.mm(torch.ones(2, 2), weight)


def test_leaves_a_region_open(amp):
    global kept
    kept, result = product(amp)
    assert result.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_meets_no_older_cast(amp):
    with torch.no_grad():
        weight.mul_(2)
    region, result = product(amp)
    region.__exit__(None, None, None)
    assert result.tolist() == [[4.0, 4.0], [4.0, 4.0]]
"""
    )
    result = project.apart(*ON_CPU, "-p", "no:randomly")
    result.assert_outcomes(passed=2, errors=1)
    assert "autocast nesting depth: 0 became 1" in result.stdout.str()


def test_frozen_flags_are_restored(project: Project) -> None:
    """Import torch's test helpers, which freeze cuDNN's flags, as torch.export does in some releases."""
    leak = "(setattr(torch.backends.cudnn, 'deterministic', True), torch.backends.disable_global_flags())"
    project.write(test_it=TEST.format(leaks=[leak, "torch.set_float32_matmul_precision('high')"]))
    result = project.apart(*ON_CPU, "-p", "no:randomly")
    result.assert_outcomes(passed=3, errors=2)
    actual = _messages(result)
    assert "cudnn deterministic: False became True" in actual[0]
    assert "float32 matmul precision: highest became high" in actual[1]


def _messages(result: pytest.RunResult) -> dict[int, str]:
    """Return the line below the title of each error at teardown, by the test's number."""
    lines, actual = result.outlines, {}
    for number, line in enumerate(lines):
        title = re.fullmatch(r"_+ ERROR at teardown of test_leak\[.*?([0-9]+)(-cpu-bf16)?\] _+", line)
        if title:
            actual[int(title.group(1))] = lines[number + 1]
    return actual


OWN = """
import pytest
import torch


def test_plain_leaks():
    torch.set_default_dtype(torch.float64)


def test_plain_finds_it():
    assert torch.get_default_dtype() == torch.float64
    torch.set_default_dtype(torch.float32)


@pytest.mark.amp
def test_marked_leaks():
    torch.set_default_dtype(torch.float64)


def test_restored():
    assert torch.get_default_dtype() == torch.float32


@pytest.fixture
def careful():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_with_a_fixture_that_restores(careful, amp_device):
    assert torch.get_default_dtype() == torch.float64


@pytest.fixture(autouse=True)
def automatic():
    torch.set_autocast_cache_enabled(False)
    yield
    torch.set_autocast_cache_enabled(True)


class TestWider:
    @pytest.fixture(scope="class", autouse=True)
    def wider(self):
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)

    @pytest.mark.parametrize("n", [1, 2])
    def test_is_not_accused(self, amp_dtype, n):
        assert torch.get_default_dtype() == torch.float64

    def test_nor_cured(self, amp_dtype):
        assert torch.get_default_dtype() == torch.float64


def test_monkeypatch(monkeypatch, amp):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


def test_regions(amp_autocast):
    with amp_autocast(), amp_autocast(enabled=False), torch.no_grad():
        pass


def test_a_failing_test_in_a_region(amp_autocast):
    with amp_autocast():
        raise AssertionError


def test_an_end():
    assert torch.get_default_dtype() == torch.float32
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()
"""


def test_leak_is_red_in_the_marked_test_that_caused_it(project: Project) -> None:
    project.write(test_it=OWN)
    result = project.apart(*ON_CPU, "-p", "no:randomly", "-v")
    result.stdout.fnmatch_lines(["*::test_marked_leaks ERROR *", "*::test_a_failing_test_in_a_region*FAILED*"])
    result.assert_outcomes(passed=11, failed=1, errors=1)


def test_leak_of_a_skipped_or_failed_test_is_red(project: Project) -> None:
    project.write(
        test_it="import pytest\nimport torch\n\n\n@pytest.mark.parametrize('end', ['pytest.skip()', '1 / 0'])\n"
        "def test_it(amp, end):\n    torch.set_default_dtype(torch.float64)\n    eval(end)\n"
    )
    result = project.here(*ON_CPU)
    result.assert_outcomes(skipped=1, failed=1, errors=2)


def test_leak_of_a_fixture_is_red(project: Project) -> None:
    """Guard all of a test's own fixtures, their teardowns included."""
    project.write(
        test_it="import pytest\nimport torch\n\n\n@pytest.fixture\ndef first():\n"
        "    torch.set_grad_enabled(False)\n\n\n"
        "@pytest.fixture\ndef last():\n    yield\n    torch.set_grad_enabled(False)\n\n\n"
        "def test_first(first, amp):\n    pass\n\n\ndef test_last(amp, last):\n    assert torch.is_grad_enabled()\n\n\n"
        "def test_after(amp):\n    assert torch.is_grad_enabled()\n"
    )
    project.here(*ON_CPU).assert_outcomes(passed=3, errors=2)


def test_amp_tests_run_with_one_thread_and_restore_the_number(project: Project) -> None:
    project.write(
        test_it="import torch\n\ntorch.set_num_threads(3)\nBEFORE = torch.get_num_threads()\n\n\ndef test_one(amp):\n"
        "    assert torch.get_num_threads() == 1\n    torch.set_num_threads(2)\n\n\n"
        "def test_again(amp):\n    assert torch.get_num_threads() == 1\n\n\n"
        "def test_plain():\n    assert torch.get_num_threads() == BEFORE\n"
    )
    project.here(*ON_CPU).assert_outcomes(passed=3)


def test_leak_is_red_under_workers(project: Project) -> None:
    project.write(test_it="import torch\n\n\ndef test_it(amp):\n    torch.set_default_dtype(torch.float64)")
    result = project.apart(*ON_CPU, "-n", "1")
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
