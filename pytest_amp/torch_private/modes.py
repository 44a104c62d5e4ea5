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


def inside_transform() -> bool:
    """Whether a transform of ``torch.func`` is running. PrivateApiGone if torch does not say."""
    try:
        from torch._C import _functorch
    except ImportError:
        raise PrivateApiGone("torch._C._functorch") from None
    peek = getattr(_functorch, "peek_interpreter_stack", None)
    if peek is None:
        raise PrivateApiGone("torch._C._functorch.peek_interpreter_stack")
    return peek() is not None
