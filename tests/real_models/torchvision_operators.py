"""Stand-ins for torchvision's compiled operators, for a torch of a different build.

torchvision for CUDA does not load its extension with a torch for CPUs, and its import then ends in "operator
torchvision::nms does not exist" (pytorch/vision, ``_meta_registrations.py``).
"""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Schemas of the operators for which torchvision registers fake kernels while it is imported.
SCHEMAS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@functools.cache
def provide() -> bool:
    """Define the operators in Python if torchvision's own do not load; return True if that was necessary.

    ``roi_align`` needs none: without the extension torchvision computes it in Python.
    """
    spec = find_spec("torchvision")
    if spec is None or _loads(Path(str(spec.origin)).parent):
        return False
    for name, schema in SCHEMAS.items():
        torch.library.define(name, schema)
    torch.library.impl("torchvision::nms", "default", non_maximum_suppression)
    boxes: Any = importlib.import_module("torchvision.ops.boxes")
    boxes._assert_has_ops = lambda: None
    roi_align: Any = importlib.import_module("torchvision.ops.roi_align")
    roi_align._roi_align = roi_align._roi_align.__wrapped__  # the wrapper compiles it, which takes a minute
    return True


def _loads(folder: Path) -> bool:
    """Return True if torch loads the extension in torchvision's folder."""
    operators: Any = torch.ops
    for extension in folder.glob("_C*.so"):
        try:
            operators.load_library(extension)
        except OSError:
            continue
        return True
    return False


def non_maximum_suppression(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of boxes by falling score that overlap no better one by more than the threshold.

    ``dets`` has shape (N, 4): left, top, right, bottom. The result is int64.
    """
    dets = dets.float()
    areas = (dets[:, 2:] - dets[:, :2]).prod(1)
    remaining = scores.argsort(descending=True)
    selected = []
    while len(remaining):
        best, remaining = remaining[0], remaining[1:]
        selected.append(best)
        corners = torch.maximum(dets[best, :2], dets[remaining, :2]), torch.minimum(dets[best, 2:], dets[remaining, 2:])
        common = (corners[1] - corners[0]).clamp(min=0).prod(1)
        remaining = remaining[common <= iou_threshold * (areas[best] + areas[remaining] - common)]
    return torch.stack(selected) if selected else remaining
