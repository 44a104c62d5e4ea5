"""Planted defects that ask about a call what no rule asks about: its layout, size, options, mode, or where it is."""

from __future__ import annotations

from tests.planted.defect import Defect

_HAND_CAST = "suites/rules/test_hand_cast.py"


def _hand_cast(module: str, breaks: str, device: str, operator: str) -> Defect:
    failing = f"test_does_what_casting_by_hand_does[fake-{device}-bf16-{operator}]"
    return Defect(module, breaks, (_HAND_CAST, f"--amp-device=fake:{device}", "-k", operator), failing)


CALLS = (
    _hand_cast("indices_from_the_end_narrow", "a rule for dimensions counted from the end", "cuda", "scatter_add"),
    _hand_cast("softmax_of_millions_is_low", "a rule for every size", "cuda", "softmax.int"),
    _hand_cast("log_softmax_of_scalars_is_low", "a rule for scalars", "mps", "log_softmax.int"),
    _hand_cast("group_norm_of_channels_last_is_low", "a rule for every layout", "xpu", "group_norm"),
    _hand_cast("layer_norm_in_inference_is_low", "a rule for every mode", "cuda", "layer_norm"),
    Defect(
        "products_of_int32_are_low",
        "leaving whole numbers alone",
        ("suites/rules/test_left_alone.py", "--amp-device=fake:mps", "-k", "bmm"),
        "test_other_dtypes_and_other_devices[fake-mps-bf16-bmm]",
    ),
)
