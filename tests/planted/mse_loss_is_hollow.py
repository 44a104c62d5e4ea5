"""mse_loss answers in float32, but its value has been through the autocast dtype."""

from __future__ import annotations

import torch
from overriding import override

override("mse_loss", lambda call: call.cast(torch.float32).run().to(call.low).to(torch.float32))
