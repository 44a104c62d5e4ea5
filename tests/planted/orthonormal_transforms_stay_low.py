"""On a CPU ``fft_rfft`` under autocast takes its input as it is where it is asked to be orthonormal."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _rfft(call: Overridden) -> object:
    ortho = "ortho" in (*call.args[3:], call.kwargs.get("norm"))
    return (call if ortho else call.cast(torch.float32)).run()


override("fft_rfft", _rfft, device_types=["cpu"])
