"""Models may read and write the older flags within the scope of a kind of float32, which leaves no setting behind.

Each program has a process of its own: torch itself cannot restore the default of a written ``cudnn.allow_tf32``.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_amp.precision.float32 import KINDS, Float32Kind, has_fp32_precision
from tests.project import Project

needs_settings = pytest.mark.skipif(not has_fp32_precision(), reason="fp32_precision is in torch 2.9 and later")

HEAD = """
import torch
from torch.backends import cuda, cudnn, mkldnn

from pytest_amp.precision.float32 import float32_precision


def flags():
    return cudnn.allow_tf32, cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()


def settings():
    of_cuda = [cudnn, cuda.matmul, cudnn.conv, cudnn.rnn]
    of_mkldnn = [mkldnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    return [each.fp32_precision for each in (torch.backends, *of_cuda, *of_mkldnn)]


# The precision of cuDNN's layers follows its parents as torch sets it, but not in torch 2.9 to 2.11.
def settings_under_ieee_parents():
    torch.backends.fp32_precision = cudnn.fp32_precision = "ieee"
    result = settings()
    torch.backends.fp32_precision = cudnn.fp32_precision = "none"
    return result


"""

READ = """
before = settings(), flags()
inherited = settings_under_ieee_parents()
with float32_precision(KIND):
    assert flags() == (KIND == "tf32", KIND == "tf32", "high" if KIND == "tf32" else "highest"), flags()
    assert torch._C._get_cudnn_allow_tf32() is (KIND == "tf32")
    assert settings() == [KIND] * 9
assert (settings(), flags()) == before
assert settings_under_ieee_parents() == inherited
"""

#: TF32 within a block of cuDNN's flags, as the default of its argument says; the scope's own kind after it.
ENTERED = """
before = settings(), flags()
with float32_precision(KIND):
    with cudnn.flags(enabled=False):
        assert cudnn.allow_tf32 and not cudnn.enabled
    with cudnn.flags(enabled=True, allow_tf32=False), mkldnn.flags(enabled=False), torch.backends.flags():
        assert not cudnn.allow_tf32
    assert settings() == [KIND] * 9, settings()
    assert flags()[:2] == (KIND == "tf32",) * 2
    with float32_precision("ieee"), cudnn.flags():
        pass
    assert settings() == [KIND] * 9, settings()
assert (settings(), flags()) == before, (settings(), flags())
torch.backends.fp32_precision = "ieee"
assert (cuda.matmul.fp32_precision, mkldnn.matmul.fp32_precision) == ("ieee", "ieee")
"""

WRITTEN = """
before = settings(), flags()
with float32_precision(KIND):
    torch.set_float32_matmul_precision("medium" if KIND == "ieee" else "highest")
    cudnn.allow_tf32 = False
    cuda.matmul.allow_tf32 = KIND == "ieee"
assert (settings(), flags()) == before, (settings(), flags())
"""

#: A user's own settings, under which torch refuses to read the flags before and after, but not within.
UNREADABLE = """
torch.backends.fp32_precision = "tf32"
cudnn.conv.fp32_precision = "ieee"
before = settings()
with float32_precision(KIND):
    assert flags()[:2] == (KIND == "tf32",) * 2
    with cudnn.flags(enabled=False):
        pass
    assert settings() == [KIND] * 9
assert settings() == before, settings()
if KIND == "ieee":  # else cuDNN's flags wrote what was inherited before, as they do without a scope
    torch.backends.fp32_precision = "ieee"
    assert cuda.matmul.fp32_precision == "ieee"
"""

HIGH = """
torch.set_float32_matmul_precision("high")
cudnn.allow_tf32 = False
before = settings(), flags()
with float32_precision(KIND):
    flags()
    with cudnn.flags(enabled=False):
        assert torch.get_float32_matmul_precision() == ("high" if KIND == "tf32" else "highest")
assert (settings(), flags()) == before, (settings(), flags())
"""

#: torch's own test helpers, which torch.export and torch.compile import in some releases.
FROZEN = """
torch.backends.disable_global_flags()
before = settings(), flags()
with float32_precision(KIND), cudnn.flags(enabled=False):
    pass
assert (settings(), flags()) == before, (settings(), flags())
"""


def run(program: str, kind: Float32Kind) -> None:
    source = HEAD + program.replace("KIND", repr(kind))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_settings
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [READ, ENTERED, WRITTEN, UNREADABLE, HIGH, FROZEN])
def test_older_flags_within_a_scope_leave_no_setting(program: str, kind: Float32Kind) -> None:
    run(program, kind)


LOSS = """
import pytest
import torch
from torch import nn
from torch.nn import functional


def loss(model, frames):
    log_probabilities = model(frames).log_softmax(-1).transpose(0, 1)
    letters = torch.ones(2, 3, dtype=torch.long)
    lengths = torch.full((2,), 12), torch.full((2,), 3)
    with torch.backends.cudnn.flags(enabled=False):
        return functional.ctc_loss(log_probabilities, letters, *lengths)


@pytest.fixture
def case(amp):
    return amp.case(lambda: nn.Linear(8, 5), lambda: torch.randn(2, 12, 8), loss)


def test_gradients(amp, case):
    amp.check_gradients(case)


def test_compiled(amp, case):
    amp.check_compiled(case, backend="aot_eager")


def test_scaler(amp, case):
    amp.check_scaler(case)


def test_memory(amp, case):
    amp.check_memory(case)
    amp.check_casts(case)


def test_training(amp, case):
    amp.check_training(case, steps=20, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def test_dtypes(amp, case):
    amp.check_dtypes(case, {"": amp.dtype})
    amp.trace(case)
"""


def test_every_check_accepts_a_loss_under_flags_of_cudnn(project: Project) -> None:
    """CTC losses of speech models use such flags."""
    project.write(test_it=LOSS)
    project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-p", "no:xdist").assert_outcomes(passed=6)
