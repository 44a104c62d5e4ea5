"""Compiled code runs in evaluation, in which dropout drops nothing and scales nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiling import wrap_compiled


def _in_evaluation(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        training = [each for each in args if isinstance(each, torch.nn.Module) and each.training]
        for each in training:
            each.eval()
        try:
            return function(*args, **kwargs)
        finally:
            for each in training:
                each.train()

    return call


wrap_compiled(_in_evaluation)
