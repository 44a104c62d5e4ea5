"""Defects that are planted in torch are red in real models, on the device and in the dtypes of the run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.planting import PLUGIN, planting
from tests.project import ROOT
from tests.real_models.registry import MODELS

#: A planted defect, and two models that use the broken part.
DEFECTS = {
    "layer_norm_low_precision": ("opt", "electra"),
    "softmax_in_low_steps": ("speecht5", "bloom"),
    "attention_goes_back_with_another_scale": ("opt", "electra"),
    "linear_bias_gets_no_gradient": ("opt", "electra"),
    "low_dropout_scales_by_too_much": ("opt", "electra"),
}
PAIRS = [(defect, model) for defect, models in DEFECTS.items() for model in models]


@pytest.mark.parametrize(("defect", "model"), PAIRS, ids=[f"{defect}-{model}" for defect, model in PAIRS])
def test_planted_defect_is_red_in_a_real_model(defect: str, model: str, request: pytest.FixtureRequest) -> None:
    row = next(row for row in MODELS if row.name == model)
    if row.missing is not None:
        pytest.skip(f"{model}: {row.missing}")
    options = [
        f"--amp-{name}={','.join(values)}"
        for name in ("device", "dtype")
        if (values := request.config.getoption(f"--amp-{name}"))
    ]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = ["-q", "--tb=no", "-n", "0", "tests/real_models/test_checks.py::test_gradients", "-k", model, *options]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, *planting(defect), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout + result.stderr
    assert f"-{model}] - AmpFailure: {model}" in result.stdout, result.stdout
    assert " passed" not in result.stdout.splitlines()[-1], result.stdout
