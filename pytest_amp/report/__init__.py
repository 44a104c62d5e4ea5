"""Reports, as pure functions of a run's results."""
