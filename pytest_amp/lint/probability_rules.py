"""Rule about logarithms of probabilities that were rounded to a low dtype, and widened again."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_amp.lint.program import Call, near
from pytest_amp.lint.suspect import Suspect
from pytest_amp.precision import dtype_name

LOGARITHMS = ("log", "log2", "log10", "log1p", "logit", "xlogy", "special_xlog1py")
LOG_OF_LOGITS = "Use log_softmax, logsigmoid, cross_entropy or binary_cross_entropy_with_logits of float32 values"
_PROBABILITIES = ("sigmoid", "_softmax")
#: Elementwise operators between a probability and its logarithm.
_SHIFTS = frozenset({"add", "sub", "rsub", "neg", "clamp", "clamp_min", "clamp_max"})


def rounded_probabilities(call: Call) -> Iterator[Suspect]:
    """Yield a wide logarithm of probabilities that sigmoid or softmax rounded to a low dtype: those near 1 are 1."""
    is_logarithm = (call.operator in LOGARITHMS and call.is_direct) or call.operator == "binary_cross_entropy"
    if not is_logarithm or call.is_low or call.place.library or not call.operands:
        return
    for before in near(call.operands[0], _SHIFTS, 3):
        if before.operator in _PROBABILITIES and before.is_low and before.dtype is not None:
            name, low = before.operator.strip("_"), dtype_name(before.dtype)
            yield Suspect(
                "low-log",
                f"a logarithm ({{operators}}) is taken of probabilities ({name}) in {low}: widened again, those near 1 "
                "are 1",
                LOG_OF_LOGITS,
                call.place,
                module=call.module,
                operators=(call.operator,),
                number=call.number,
            )
            return
