"""Autocast's rule for each operator: the data, the registered kernels, and the observed behaviour."""
