"""Reports as one page of HTML: no network, no server, no other file.

It needs jinja2, the extra ``html`` (torch brings it along); without it, importing this raises
ModuleNotFoundError.
"""

from pytest_amp.report.html.pages import of_difference, of_history, of_run, of_trend

__all__ = ["of_difference", "of_history", "of_run", "of_trend"]
