"""Finding: one error or warning, with the line that causes it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """Weight of a finding: an error fails ``amp.check``, a warning fails it with ``strict=True`` only."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of the linter.

    Fields
    ------
    kind:
        A name of lower-case words joined by hyphens, such as ``low-softmax``; docs/findings/ has a page of that name.
    severity:
        Error or warning, before harm is measured.
    module:
        Qualified name of the module that ran the line, as in ``model.named_modules()``; ``""`` is the model itself
        or code outside it.
    site:
        ``file:line`` of the user's code, the file relative to the working directory where it is inside; ``""`` where
        no line of the user's ran.
    message:
        One sentence: what the line does, with operators, dtypes and values.
    advice:
        One sentence in the imperative: how to change the line.
    """

    kind: str
    severity: Severity
    module: str
    site: str
    message: str
    advice: str
