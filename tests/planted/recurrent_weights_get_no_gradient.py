"""The recurrent weights of an LSTM under autocast are cut off from the graph: oneDNN's on a CPU, cuDNN's on CUDA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overriding import Overridden, override


def _onednn(call: Overridden) -> Any:
    x, weight, recurrent, *rest = call.args
    return replace(call, args=(x, weight, recurrent.detach(), *rest)).cast(call.low).run()


def _cudnn(call: Overridden) -> Any:
    x, weights, stride, _buffer, *rest = call.args
    cut = [each.detach() if place % stride == 1 else each for place, each in enumerate(weights)]
    return replace(call, args=(x, cut, stride, None, *rest)).cast(call.low).run()


override("mkldnn_rnn_layer", _onednn, device_types=["cpu"])
override("_cudnn_rnn", _cudnn, device_types=["cuda"])
