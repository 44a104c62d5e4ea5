"""Child processes for calls that may crash a process; they are restarted after a crash."""

from pytest_amp.child_process.plugins import plugin_modules
from pytest_amp.child_process.process import ExaminationFailed, Isolated, ProcessLost

__all__ = ["ExaminationFailed", "Isolated", "ProcessLost", "plugin_modules"]
