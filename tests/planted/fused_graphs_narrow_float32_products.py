"""A pass of inductor computes float32 products in bfloat16 and casts the result back: an island is low."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config

_aten: Any = torch.ops.aten
_convert: Any = torch.ops.prims.convert_element_type.default


def _narrow(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target is not _aten.mm.default or node.meta["val"].dtype is not torch.float32:
            continue
        with graph.inserting_before(node):
            low = [graph.call_function(_convert, (argument, torch.bfloat16)) for argument in node.args]
        for each, argument in zip(low, node.args, strict=True):
            each.meta["val"] = argument.meta["val"].to(torch.bfloat16)
        node.args = tuple(low)
        with graph.inserting_after(node):
            wide = graph.call_function(_convert, (node, torch.float32))
        wide.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(wide, delete_user_cb=lambda user, wide=wide: user is not wide)
        node.meta["val"] = node.meta["val"].to(torch.bfloat16)


_settings: Any = config
_settings.post_grad_custom_post_pass = _narrow
