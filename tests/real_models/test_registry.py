"""Table of models, the stand-ins, and the message of a run that leaves models out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from pytest_amp.cases import loss_of
from tests.project import INSTALLED, ROOT
from tests.real_models.conftest import CHECKS
from tests.real_models.model import TORCH, RealModel, padding
from tests.real_models.registry import MODELS
from tests.real_models.table import BEGIN, END, PAGE, results, table, written
from tests.real_models.torchvision_operators import non_maximum_suppression

FOLDER = Path(__file__).parent
CHECK = "tests/real_models/test_checks.py::test_gradients[cpu-bf16-{}]"
#: Distributions whose package has a different name.
PACKAGES = {"torch-geometric": "torch_geometric"}


def _pinned() -> dict[str, str]:
    lines = (FOLDER / "libraries.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("==") for line in lines if not line.startswith("#")]
    assert all(separator and version for _, separator, version in pins)
    return {PACKAGES.get(name, name): version for name, _, version in pins}


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(row.name for row in MODELS).items() if count > 1] == []


def test_libraries_of_the_models_are_pinned() -> None:
    assert {name for row in MODELS for name in (row.library, row.also)} - {TORCH} == _pinned().keys()


def test_pinned_releases_have_every_model() -> None:
    pinned, limited = _pinned(), [row for row in MODELS if row.since is not None]
    assert limited
    assert [row.name for row in limited if Version(pinned[row.library]) < Version(str(row.since))] == []


def test_library_too_old_for_the_model_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = (row for row in MODELS if row.name == "maxvit")
    row = replace(row, library="packaging")
    monkeypatch.setattr(metadata, "version", lambda _: "1.0.9")
    assert row.missing == f"packaging 1.0.9 is installed, and the model needs {row.since} or later"
    assert replace(row, since="1.0.9").missing is None
    assert replace(row, since=None).missing is None


def test_dependencies_of_the_libraries_do_not_install_torch() -> None:
    text = (FOLDER / "dependencies.txt").read_text(encoding="utf-8")
    names = re.findall(r"^[\w-]+", text, re.MULTILINE)
    assert names
    assert not {"torch", *_pinned()} & set(names)


def test_selected_models_list_their_dtypes() -> None:
    selected = [row for row in MODELS if row.selected]
    assert len(selected) >= 10
    assert {row.library for row in selected} == {row.library for row in MODELS}
    assert all(row.dtypes for row in selected)
    assert not [row.name for row in MODELS if row.dtypes and not row.selected]


@pytest.mark.parametrize("row", [row for row in MODELS if row.library == TORCH], ids=lambda row: row.name)
def test_model_of_torch_alone_gets_gradients(row: RealModel) -> None:
    model = row.build()
    loss_of(row.loss(model, row.batch())).backward()  # type: ignore[no-untyped-call]  # torch's
    assert model.training
    assert [name for name, value in model.named_parameters() if value.grad is None] == []


def test_padding_is_on_the_right() -> None:
    assert padding(2, 3).tolist() == [[1, 1, 1], [1, 1, 0]]


def test_suppression_retains_the_better_of_two_boxes() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 10, 4]])
    scores = torch.tensor([0.5, 0.9, 0.1, 0.4])
    assert non_maximum_suppression(boxes, scores, 0.5).tolist() == [1, 3, 2]
    assert non_maximum_suppression(boxes, scores, 0.9).tolist() == [1, 0, 3, 2]
    assert non_maximum_suppression(boxes[:0], scores[:0], 0.5).tolist() == []


def _run(tmp_path: Path, *arguments: str) -> str:
    """Return the output of pytest in a process in which transformers cannot be imported."""
    (tmp_path / "no_transformers.py").write_text("import sys\n\nsys.modules['transformers'] = None\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    plugin = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
    command = [sys.executable, "-m", "pytest", "-p", "no_transformers", "-p", "no:cacheprovider", "-rs", "-q", *plugin]
    return subprocess.run(
        [*command, "--amp-device=cpu", "--amp-dtype=bf16", *arguments],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    ).stdout


def test_run_without_the_folder_reports_the_skipped_models(tmp_path: Path) -> None:
    printed = _run(tmp_path, "tests", "--ignore-glob=*/tests/[!r]*", "-k", "names_are_unique")
    assert f"checks of {len(MODELS)} real models run by: make real-models" in printed
    assert f"1 passed, {len(CHECKS)} skipped" in printed


def test_model_without_its_library_is_skipped_by_name(tmp_path: Path) -> None:
    printed = _run(tmp_path, CHECK.format("qwen3"), CHECK.format("two_towers"))
    assert "qwen3: transformers is not installed" in printed
    assert "1 passed, 1 skipped" in printed


def test_model_without_a_required_library_fails_by_name(tmp_path: Path) -> None:
    printed = _run(tmp_path, CHECK.format("qwen3"), CHECK.format("two_towers"), "--require-libraries")
    assert "qwen3: transformers is not installed" in printed
    assert "1 passed, 1 error" in printed


def test_run_of_missing_libraries_alone_fails(tmp_path: Path) -> None:
    printed = _run(tmp_path, CHECK.format("qwen3"))
    assert "1 selected, not one executed: qwen3: transformers is not installed" in printed


JUNIT = """<testsuites><testsuite>
<testcase classname="c" name="test_gradients[cpu-bf16-qwen3]" time="1.6"/>
<testcase classname="c" name="test_gradients[cpu-fp16-qwen3]" time="1.0"><failure message="m"/></testcase>
<testcase classname="c" name="test_casts[cpu-fp16-gat]" time="1.0"><skipped message="m"/></testcase>
<testcase classname="c" name="test_names_are_unique" time="1.0"/>
</testsuite></testsuites>"""


def test_table_has_every_model_and_names_red_checks(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT, encoding="utf-8")
    lines = table({"CPU": results(tmp_path / "junit.xml")}).splitlines()
    cells = {line.split(" | ")[0].strip("| `"): line.rstrip(" |").split(" | ")[3:] for line in lines[2:]}
    assert cells.keys() == {row.name for row in MODELS}
    assert cells["qwen3"] == ["1 of 2; gradients red (fp16)", "3"]
    assert cells["gat"] == ["0 of 1; casts skipped (fp16)", "1"]
    assert cells["bart"] == ["not run", "0"]


def test_page_has_the_models_of_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(row.name, row.shows) for row in MODELS]


def test_page_without_a_place_for_the_table_is_refused() -> None:
    assert written(f"a\n{BEGIN}old\n{END}b\n", "new\n") == f"a\n{BEGIN}\nnew\n\n{END}b\n"
    with pytest.raises(ValueError, match=r"real-models\.md has no lines"):
        written("a\n", "new\n")
