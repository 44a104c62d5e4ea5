"""Rule about logarithms of probabilities that were rounded to a low dtype, and widened again."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_amp.lint.program import Call, near
from pytest_amp.lint.suspect import Suspect
from pytest_amp.precision import dtype_name

LOGARITHMS = ("log", "log2", "log10", "log1p", "logit", "xlogy", "special_xlog1py")
LOG_OF_LOGITS = (
    "Use log_softmax, logsumexp, logsigmoid, softplus, cross_entropy or binary_cross_entropy_with_logits, of float32 "
    "values"
)
LOG_OF_VALUES = "Compute the logarithm in float32, of values that were not rounded before: widen them first (x.float())"
_PROBABILITIES = ("sigmoid", "_softmax")
_EXPONENTIALS = ("exp", "exp2", "expm1")
#: Elementwise operators between a probability and its logarithm.
_SHIFTS = frozenset({"add", "sub", "rsub", "neg", "clamp", "clamp_min", "clamp_max"})
#: Operators that select probabilities, or combine them to other ones.
_COMBINED = _SHIFTS | {"mul", "div", "where", "gather", "index", "index_select", "masked_fill", "sum"}


def advice_for_logarithm(call: Call) -> str:
    """Return the advice for a low-precision logarithm: a function of logits if it is taken of probabilities."""
    makers = [maker for operand in call.operands[:1] for maker in near(operand, _COMBINED, 6)]
    is_of_logits = any(maker.operator in (*_PROBABILITIES, *_EXPONENTIALS) and maker.numel > 1 for maker in makers)
    return LOG_OF_LOGITS if is_of_logits and call.numel > 1 else LOG_OF_VALUES


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
