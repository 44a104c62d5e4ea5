"""Child processes that do what may bring a process down, and are started again after it has."""

from pytest_amp.isolation.plugins import plugin_modules
from pytest_amp.isolation.process import ExaminationFailed, Isolated, ProcessLost

__all__ = ["ExaminationFailed", "Isolated", "ProcessLost", "plugin_modules"]
