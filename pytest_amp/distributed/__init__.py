"""Processes of a process group, started by torch's own launcher, that a test asks to compute something together."""

from pytest_amp.distributed.group import RankGroup, RanksFailed, unavailable
from pytest_amp.distributed.rank import Rank

__all__ = ["Rank", "RankGroup", "RanksFailed", "unavailable"]
