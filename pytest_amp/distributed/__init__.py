"""Process groups for tests: processes that torch's launcher starts and that compute together."""

from pytest_amp.distributed.group import RankGroup, RanksFailed, unavailable
from pytest_amp.distributed.rank import Rank

__all__ = ["Rank", "RankGroup", "RanksFailed", "unavailable"]
