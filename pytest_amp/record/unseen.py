"""What a machine could not tell, in the words of a dtype: it differs from nothing."""

from __future__ import annotations

import re

#: In place of one dtype: it could not be told on this machine.
UNSEEN = "?"
#: What the text begins with where there are no dtypes at all, and why.
NOT = "not: "
#: The one of these reasons that says nothing of torch.
NOT_HERE = f"{NOT}needs another build or machine"


def alike(now: object, before: object) -> bool:
    """Whether two texts differ in nothing that both machines could tell."""
    if not isinstance(now, str) or not isinstance(before, str):
        return False
    if NOT_HERE in (now, before) or (now.startswith(NOT) and before.startswith(NOT)):
        return True
    words, earlier = (re.findall(r"[^\s,;|]+|[,;|]", text) for text in (now, before))
    pairs = zip(words, earlier, strict=False)
    return len(words) == len(earlier) and all(a == b or UNSEEN in (a, b) for a, b in pairs)
