"""Child processes end with their parent, and report how they ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp.child_process.protocol import Children, StartFailed, last_words

WATCH = "from pytest_amp.child_process import protocol; protocol._leave_with({parent})"


def test_child_ends_once_its_parent_has_ended() -> None:
    parent = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    watch = [sys.executable, "-c", WATCH.format(parent=int(parent.stdout))]
    assert subprocess.run(watch, timeout=60, check=False).returncode == 1
    watch[-1] = WATCH.format(parent=os.getpid())
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(watch, timeout=4, check=False)


def test_child_that_ends_before_it_connects_is_quoted() -> None:
    children = Children(lambda _folder: ["no_such_module_of_a_child"], {}, path=())
    with pytest.raises(StartFailed, match=r"ended with status 1, saying: .*No module named no_such_module_of_a_child"):
        children.accept(60)
    assert children.end(0, 1) == 1
    children.clean_up()
    assert not Path(children.folder).exists()


def test_last_output_of_a_child_is_one_line() -> None:
    assert last_words("first\n  last   line \n\n") == "last line"
    assert last_words("") == ""
    assert last_words("x" * 300) == "x" * 200
