"""Every module of torch.nn is in a suite that checks its values, or is listed here with the suite that does."""

from __future__ import annotations

import re

from torch import nn

from suites.gradients.modules import MODULES
from tests.project import ROOT

#: Modules without values, or with values that their functions, or their parts, have.
ELSEWHERE = {
    "containers": {"Container", "ModuleDict", "ParameterDict", "ParameterList", "RNNCellBase"},
    "draws, as functions": {"AlphaDropout", "FeatureAlphaDropout", "Dropout1d", "Dropout2d", "Dropout3d"},
    "their functions": {
        *("CTCLoss", "CrossMapLRN2d", "FractionalMaxPool2d", "FractionalMaxPool3d", "MultiLabelMarginLoss"),
        *("MultiMarginLoss", "NLLLoss2d", "LinearCrossEntropyLoss", "LinearCrossEntropyOptions"),
    },
    "layers, in test_layer_arguments.py": {"TransformerDecoder"},
}


def test_modules_of_torch_are_all_in_a_suite() -> None:
    """Ignore the suite of fingerprints, which has all modules and checks their dtypes alone."""
    folders = (ROOT / "suites", ROOT / "pytest_amp" / "cases")
    files = [path for folder in folders for path in folder.rglob("*.py") if "fingerprint" not in path.parts]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = {*MODULES, *re.findall(r"nn\.(\w+)", text)}.union(*ELSEWHERE.values())
    lazy = {name for name in nn.modules.__all__ if name.startswith("Lazy")}  # a lazy module becomes its class
    assert {*nn.modules.__all__} - lazy - named == set()
    assert len(MODULES) > 80
