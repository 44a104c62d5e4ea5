"""Child process that examines: ``python -m pytest_amp.child_process.child``, of ``Isolated``.

After an error that leaves the device unusable it reports that and exits.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from pytest_amp.child_process.poison import POISONED, is_sticky
from pytest_amp.child_process.protocol import Parent, connect
from pytest_amp.text.quoted import quoted_with_type


def main() -> int:
    """Serve the parent's requests; returns the exit status."""
    parent = connect()
    try:
        examine = _examiner(parent)
    except Exception as error:  # noqa: BLE001  # the parent reports any error
        parent.answer({"error": quoted_with_type(error, 300)})
        return 1
    for request in parent.requests():
        answer = _answer(examine, request)
        parent.answer(answer)
        if "poisoned" in answer:
            return POISONED
    return 0


def _examiner(parent: Parent) -> Callable[..., Any]:
    parent.import_modules()
    import torch

    module, _, function = parent.settings["examiner"].partition(":")
    examine: Callable[..., Any] = getattr(importlib.import_module(module), function)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return examine


def _answer(examine: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    from pytest_amp.devices import find_device

    try:
        device = find_device(request["device"])
        value = json.loads(json.dumps(examine(request, device)))
    except Exception as error:  # noqa: BLE001  # any error: the parent adds the request's name
        return {"poisoned" if is_sticky(error) else "error": quoted_with_type(error, 300)}
    try:
        device.synchronize()
    except Exception as error:  # noqa: BLE001  # any error of the back end: the device does not answer
        return {"poisoned": quoted_with_type(error, 300)}
    return {"value": value}


if __name__ == "__main__":
    # Exit normally: an interpreter may hang or crash in a back end's destructors, which its exit status then shows.
    sys.exit(main())
