"""Search for the torch release that changed a result, each tried in a temporary environment."""

from pytest_amp.bisection.environment import REQUIREMENTS, Installer, InstallFailed
from pytest_amp.bisection.releases import between, listed, wheels_in
from pytest_amp.bisection.search import Answer, Standing, Trial, search
from pytest_amp.bisection.trial import Question, Trials

__all__ = [
    "REQUIREMENTS",
    "Answer",
    "InstallFailed",
    "Installer",
    "Question",
    "Standing",
    "Trial",
    "Trials",
    "between",
    "listed",
    "search",
    "wheels_in",
]
