"""Child process: ``python -m pytest_amp.child_process.child SETTINGS``.

It imports the requested modules, reports that it is ready, then answers one JSON line per request line until its input
ends. After an error that leaves the device unusable it reports that and exits.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any

from pytest_amp.child_process.poison import POISONED, is_sticky
from pytest_amp.text.quoted import quoted_with_type


def main(settings: dict[str, Any]) -> int:
    """Serve requests on standard input; returns the exit status."""
    answers = _own_standard_output()
    for name in settings["modules"]:
        importlib.import_module(name)
    import torch

    module, _, function = settings["examiner"].partition(":")
    examine = getattr(importlib.import_module(module), function)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    _say(answers, {"ready": os.getpid()})
    for line in sys.stdin:
        answer = _answer(examine, json.loads(line))
        _say(answers, answer)
        if "poisoned" in answer:
            return POISONED
    return 0


def _own_standard_output() -> IO[str]:
    # Output of torch or a library must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _answer(examine: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    from pytest_amp.devices import find_device

    try:
        device = find_device(request["device"])
        value = examine(request, device)
    except Exception as error:  # noqa: BLE001  # any error: the parent adds the request's name
        return {"poisoned" if is_sticky(error) else "error": quoted_with_type(error, 300)}
    try:
        device.synchronize()
    except Exception as error:  # noqa: BLE001  # any error of the back end: the device does not answer
        return {"poisoned": quoted_with_type(error, 300)}
    return {"value": value}


if __name__ == "__main__":
    # Exit normally: an interpreter may hang or crash in a back end's destructors, which its exit status then shows.
    sys.exit(main(json.loads(sys.argv[1])))
