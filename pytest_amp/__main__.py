"""``python -m pytest_amp``: the command ``pytest-amp`` where nothing is installed."""

from __future__ import annotations

import sys

from pytest_amp.cli import main

if __name__ == "__main__":
    sys.exit(main())
