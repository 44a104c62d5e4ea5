"""Tensors with a device, a shape and a dtype but no storage."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pytest_amp.torch_private.gone import PrivateApiGone


def fake_tensor_mode() -> AbstractContextManager[Any]:
    """A context in which tensors have a device, a shape and a dtype but no storage.

    Raises PrivateApiGone without ``torch._subclasses.fake_tensor.FakeTensorMode``.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise PrivateApiGone("torch._subclasses.fake_tensor.FakeTensorMode") from None
    return FakeTensorMode(allow_non_fake_inputs=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


@functools.cache
def shared_fake_tensor_mode() -> AbstractContextManager[Any]:
    """One ``fake_tensor_mode`` for the whole process, which may be entered again and again.

    Making one takes longer than most operators do under it.
    """
    return fake_tensor_mode()


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Inside the block, operators that fail on fake tensors write no traceback to the log.

    Should the logger have another name one day, there is noise, and no other harm.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
