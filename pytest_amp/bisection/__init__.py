"""Which torch release changed something: a search over releases, each in an environment that is thrown away."""

from pytest_amp.bisection.environment import Installer, InstallFailed, requirements
from pytest_amp.bisection.releases import between, listed, wheels_in
from pytest_amp.bisection.search import Answer, Standing, Trial, search
from pytest_amp.bisection.trial import Question, Trials

__all__ = [
    "Answer",
    "InstallFailed",
    "Installer",
    "Question",
    "Standing",
    "Trial",
    "Trials",
    "between",
    "listed",
    "requirements",
    "search",
    "wheels_in",
]
