"""Reports: pure functions of what a run has seen."""
