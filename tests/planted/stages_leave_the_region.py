"""A stage of a pipeline computes outside of the region that its schedule runs in."""

from __future__ import annotations

from typing import Any

from overriding import outside_of_regions
from torch.distributed import pipelining

_stage: Any = pipelining.PipelineStage
_stage.forward_maybe_with_nosync = outside_of_regions(_stage.forward_maybe_with_nosync)
