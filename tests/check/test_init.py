"""``pytest-amp init`` writes a test for a model, runs it, and reports the result."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp import cli
from pytest_amp.scaffold import ScaffoldError, write_test
from pytest_amp.scaffold.batches import recipe_of

MODELS = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))

class Halved(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        return self.layer(x.half())

def nothing():
    return 3

def raising():
    raise ValueError("no weights here")

class TwoInputs(nn.Module):
    def forward(self, left, right):
        return left @ right

def make():
    return {"left": torch.randn(4, 4), "right": torch.randn(4, 4, requires_grad=True)}

def loss(model, batch):
    return model(**batch).float().square().mean()
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a module of models, in which the command runs."""
    name = f"models_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return Path(name)


def test_init_writes_and_runs_a_test_of_the_model(
    models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(cli.__file__).parents[2]}:.")
    assert cli.main(["init", f"{models}:build", "--to", "test_it.py"]) == 0
    out = capfd.readouterr().out
    assert "wrote test_it.py: the inputs are those of the first layer, Linear; targets and loss are placeholders" in out
    assert "build under autocast(cpu, bfloat16): no finding" in out
    with pytest.raises(SystemExit):
        cli.main(["init", f"{models}:build", "--to", "test_it.py"])
    assert "--force writes over it" in capfd.readouterr().err


def test_written_test_calls_the_named_batch_and_loss(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--batch", f"{models}:make", "--loss", f"{models}:loss"]
    assert cli.main(["init", f"{models}:TwoInputs", "--no-run", *names]) == 0
    text = Path("test_amp_twoinputs.py").read_text(encoding="utf-8")
    assert f"return {models}.make()" in text
    assert f"return {models}.loss(model, batch)" in text
    compile(text, "test", "exec")
    assert "with the batch and the loss that were named" in capsys.readouterr().out


def test_model_of_unknown_inputs_gets_a_test_to_fill_in(models: Path) -> None:
    text, note = write_test(f"{models}:TwoInputs", None, None)
    assert note.startswith("fill in make_batch and loss_of")
    assert text.count("raise NotImplementedError") == 2
    compile(text, "test", "exec")


def test_batch_is_derived_for_model_that_needs_autocast(models: Path) -> None:
    text, _ = write_test(f"{models}:Halved", None, None)
    assert "torch.randn(64, 16)" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [("nothing", "returned int"), ("raising", "no weights here"), ("absent", "AttributeError")],
)
def test_model_that_cannot_be_built_is_refused_with_its_error(models: Path, name: str, words: str) -> None:
    with pytest.raises(ScaffoldError, match=words):
        write_test(f"{models}:{name}", None, None)


def test_wrong_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["init", "models.py"])
    assert ended.value.code == 2
    assert "expected package.module:name" in capsys.readouterr().err


class Configured(nn.Module):
    """Model in the style of transformers, whose configuration has the sizes."""

    main_input_name = "input_ids"
    config = types.SimpleNamespace(vocab_size=31, num_labels=3)

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(31, 8), nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(self.embedding(input_ids).mean(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return types.SimpleNamespace(loss=loss, logits=logits)


Configured.__module__ = "transformers.models.configured"


def test_transformers_batch_follows_the_configuration() -> None:
    recipe = recipe_of(Configured())
    assert recipe is not None
    assert '"input_ids": torch.randint(3, 31, (2, 16))' in recipe.batch
    assert '"labels": torch.randint(3, (2,))' in recipe.batch
    assert recipe.loss == "return model(**batch).loss\n"


class Pictured(nn.Module):
    """Model in the style of timm."""

    default_cfg = types.MappingProxyType({"input_size": (3, 24, 24), "fixed_input_size": True})
    num_classes = 5

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 22 * 22, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.layer(x).flatten(1))


def test_timm_batch_has_the_configured_image_size() -> None:
    recipe = recipe_of(Pictured())
    assert recipe is not None
    assert '"images": torch.randn(8, 3, 24, 24)' in recipe.batch
    assert '"classes": torch.randint(5, (8,))' in recipe.batch
