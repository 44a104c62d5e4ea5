"""The base of what looks at every operator call below autograd."""

from __future__ import annotations

from typing import Any

from pytest_amp.torch_private.gone import PrivateApiGone


def dispatch_mode() -> Any:
    """The class ``torch.utils._python_dispatch.TorchDispatchMode``, without types; PrivateApiGone if there is none."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        raise PrivateApiGone("torch.utils._python_dispatch.TorchDispatchMode") from None
    return TorchDispatchMode
