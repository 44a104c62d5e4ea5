"""The recurrent weight of an LSTM under autocast on a CPU is cut off from the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overriding import Overridden, override


def _layer(call: Overridden) -> Any:
    x, weight, recurrent, *rest = call.args
    return replace(call, args=(x, weight, recurrent.detach(), *rest)).cast(call.low).run()


override("mkldnn_rnn_layer", _layer, device_types=["cpu"])
