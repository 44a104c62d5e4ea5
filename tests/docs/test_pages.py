"""Pages other than tutorials and how-to pages: their Python runs, and their commands exist, word by word.

tests/docs/test_readme.py runs the Python of README.

The pages omit the model, the batch and the loss of a reader's own: ``PRELUDE`` has them.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from pytest_amp.amp import Amp
from pytest_amp.cli import _parser
from pytest_amp.config import OPTIONS
from tests.docs.test_snippets import BLOCK
from tests.docs.test_snippets import PAGES as RUN_IN_TURN
from tests.forked import run_pytest
from tests.project import INSTALLED, ROOT

PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), ROOT / "suites" / "README.md", *(ROOT / "docs").rglob("*.md")])
    if page not in RUN_IN_TURN
]
PRELUDE = """\
import os

import pytest
import torch
from torch import nn
from torch.nn import functional

rate, low, high, names = 10.0, 9.0, 11.0, ["head"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(functional.gelu(self.norm(self.first(x)).float()))


def build_model():
    return Model()


def make_batch():
    return {"x": torch.randn(8, 16), "y": torch.randint(4, (8,))}


def loss_fn(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def tokens_per_second():
    return rate


def my_layer(x):
    return x @ x.T
"""
#: Fragments of complete programs, and code that times an accelerator: not run, but the functions that it calls exist.
READ = ("distributed.md", "speed.md")
#: Mark of a block that needs a GPU: it is not run, either.
ON_A_GPU = 'device="cuda"'
#: Options of pytest and of plugins that the pages use in addition to --amp-….
OTHERS = {"-n", "-k", "-p", "-q", "-v", "--pyargs"}


def _name(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


def _python(page: Path) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text(encoding="utf-8")) if language == "python"]


def _commands(page: Path) -> list[list[str]]:
    blocks = [text for language, text in BLOCK.findall(page.read_text(encoding="utf-8")) if language == "console"]
    lines = [line for text in blocks for line in text.splitlines() if line.startswith("$ ")]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


def _in_a_test(block: str, number: int) -> str:
    """Put a block whose statements use ``amp`` inside a test."""
    tree = ast.parse(block)
    if all(isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)) for node in tree.body):
        return block
    case = "case = amp.case(build_model, make_batch, loss_fn)\n"
    return f"def test_block_{number}(amp):\n{textwrap.indent(case + block, '    ')}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md" and _python(page)], ids=_name)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    blocks = [_in_a_test(block, number) for number, block in enumerate(_python(page))]
    if page.name in READ:
        for block in blocks:
            _check_calls(block)
        return
    for block in blocks:
        if ON_A_GPU in block:
            _check_calls(block)
    run = [block for block in blocks if ON_A_GPU not in block]
    source = "\n\n".join([PRELUDE, *run, "def test_that_it_can_be_imported():\n    pass\n"])
    # The hooks of a page belong in a conftest; a module that has them is loaded as a plugin.
    (tmp_path / "test_page.py").write_text(source, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    environment |= {"PYTHONPATH": f"{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    loaded = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
    options = [
        "-q",
        "--rootdir=.",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--amp-device=cpu",
        "--amp-dtype=bf16",
    ]
    arguments = [*loaded, *options, "--amp-allow-missing=compiler", "test_page.py"]
    output = tmp_path / "output"
    status = run_pytest(arguments, tmp_path, output, timeout=300, environment=environment)
    assert status == 0, output.read_text(encoding="utf-8")[-6000:]


def _check_calls(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            check = node.func
            if isinstance(check.value, ast.Name) and check.value.id == "amp":
                keywords = {str(keyword.arg): None for keyword in node.keywords}
                inspect.signature(getattr(Amp, check.attr)).bind(None, *node.args, **keywords)


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)], ids=_name)
def test_commands_of_a_page_exist(page: Path) -> None:
    for words in _commands(page):
        program, *arguments = words
        if program == "make":
            _check_make(arguments)
        elif program == "pytest":
            _check_pytest(arguments)
        elif program == "pytest-amp":
            assert _parser().parse_args(list(itertools.takewhile(lambda word: word != ">", arguments)))
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]), words
        else:
            assert words[:2] in (["git", "clone"], ["pip", "install"]), words


def _check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in arguments:
        name, is_value, _ = word.partition("=")
        assert re.search(rf"^{name}( \??=|{'' if is_value else ':'})", makefile, re.MULTILINE), word


def _check_pytest(arguments: list[str]) -> None:
    options = {option.name for option in OPTIONS}
    before = ""
    for word in arguments:
        name = word.partition("=")[0]
        if word.startswith("-"):
            assert name in options | OTHERS, word
        elif before not in {"-n", "-k", "-p"} and not word.startswith("pytest_amp.suites"):
            assert (ROOT / word).exists(), word
        before = word
