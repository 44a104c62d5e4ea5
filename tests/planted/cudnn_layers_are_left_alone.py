"""cuDNN's recurrent layers compute in the dtype of their input."""

from __future__ import annotations

from overriding import let_through

let_through("_cudnn_rnn", device_types=["cuda"])
