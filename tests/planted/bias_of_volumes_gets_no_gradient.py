"""The bias of a transposed convolution of volumes is detached under autocast."""

from __future__ import annotations

from dataclasses import replace

from overriding import Overridden, override


def _convolution(call: Overridden) -> object:
    x, weight, bias, *rest = call.args
    return replace(call, args=(x, weight, bias.detach(), *rest)).cast(call.low).run()


override("conv_transpose3d.input", _convolution)
