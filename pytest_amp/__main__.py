"""Command line ``python -m pytest_amp``: the command ``pytest-amp`` without an installed script."""

from __future__ import annotations

import sys

from pytest_amp.cli import main

if __name__ == "__main__":
    sys.exit(main())
