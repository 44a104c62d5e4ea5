"""A pytest plugin and a regression suite for mixed precision in PyTorch.

Importing this package imports neither torch nor numpy.
"""

__version__ = "0.1.0"
