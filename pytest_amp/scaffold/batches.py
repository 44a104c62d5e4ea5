"""Batches and losses of models of known libraries, as source: made from the configuration of the model."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

#: Sizes of what is made: two samples, sixteen tokens.
SAMPLES, TOKENS = 2, 16


class ScaffoldError(Exception):
    """A model that cannot be built, in one line."""


@dataclass(frozen=True)
class Recipe:
    """Source of the batch, an expression, and of the body of the loss; and what they were made from."""

    batch: str
    loss: str
    note: str


def load(name: str) -> Any:
    """Return the object that ``package.module:name`` names. Raises ScaffoldError."""
    module, _, attribute = name.partition(":")
    try:
        classes: Any = importlib.import_module(module)
        for part in attribute.split("."):
            classes = getattr(classes, part)
    except Exception as error:  # whatever a project's module raises
        raise ScaffoldError(f"{name}: {type(error).__name__}: {error}") from error
    return classes


def build(name: str) -> torch.nn.Module:
    """Return the model that a function or a class of that name makes. Raises ScaffoldError."""
    try:
        model = load(name)()
    except ScaffoldError:
        raise
    except Exception as error:  # whatever a model's constructor raises
        raise ScaffoldError(
            f"{name}() raised {type(error).__name__}: {error}; a function without arguments builds"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ScaffoldError(f"{name}() returned {type(model).__name__}; expected a torch.nn.Module")
    return model


def recipe_of(model: torch.nn.Module) -> Recipe | None:
    """Return the batch and the loss of a model of transformers, of timm, or of linear layers or images; else None.

    Recipes are tried one after the other, and the first whose loss runs is taken.
    """
    for recipe in _recipes(model):
        if _runs(model, recipe):
            return recipe
    return None


def _recipes(model: torch.nn.Module) -> Iterable[Recipe]:
    if _is_of(model, "transformers"):
        yield from _transformers(model)
    if _is_of(model, "timm") or hasattr(model, "default_cfg"):
        yield from _timm(model)
    yield from _plain(model)


def _is_of(model: torch.nn.Module, library: str) -> bool:
    return any(base.__module__.partition(".")[0] == library for base in type(model).__mro__)


def _transformers(model: torch.nn.Module) -> Iterable[Recipe]:
    """Batches by the names that ``forward`` takes, with the sizes of the configuration."""
    config: Any = model.config
    main = getattr(model, "main_input_name", "input_ids")
    names = inspect.signature(model.forward).parameters
    note = f"a model of transformers, its batch by {type(config).__name__}"
    sources = {
        "input_ids": f"torch.randint(3, {_vocabulary(config)}, ({SAMPLES}, {TOKENS}))",
        "pixel_values": _pixels(config),
        "input_values": f"torch.randn({SAMPLES}, 4000)",
        "input_features": f"torch.randn({SAMPLES}, {_size(config, 'num_mel_bins', 80)}, "
        f"{2 * _size(config, 'max_source_positions', 50)})",
    }
    inputs = {name: source for name, source in sources.items() if name == main or (name in names and name != main and
              name in ("input_ids", "pixel_values") and main in ("input_ids", "pixel_values"))}  # fmt: skip
    if main not in inputs:
        return
    for labels in _labels(model, config, names):
        batch = {**inputs, **labels}
        body = "outputs = model(**batch)\n"
        if "labels" in labels or "return_loss" in names:
            arguments = ", return_loss=True" if "return_loss" in names and "labels" not in labels else ""
            yield Recipe(_dictionary(batch), f"return model(**batch{arguments}).loss\n", note)
        else:
            yield Recipe(
                _dictionary(batch), f"{body}return next(iter(outputs.values())).float().square().mean()\n", note
            )


def _labels(model: torch.nn.Module, config: Any, names: Iterable[str]) -> Iterable[dict[str, str]]:
    """Candidate labels, the likeliest first, and none."""
    kind = type(model).__name__
    tokens = f"torch.randint(3, {_vocabulary(config)}, ({SAMPLES}, {TOKENS}))"
    classes = f"torch.randint({_size(config, 'num_labels', 2)}, ({SAMPLES},))"
    places = f"torch.randint({_size(config, 'num_labels', 2)}, ({SAMPLES}, {TOKENS}))"
    if "labels" in names:
        first = places if "TokenClassification" in kind else classes if "Classification" in kind else tokens
        for labels in dict.fromkeys((first, tokens, classes, places)):
            yield {"labels": labels}
    if "decoder_input_ids" in names:
        yield {"decoder_input_ids": tokens}
    yield {}


def _vocabulary(config: Any) -> int:
    for owner in (config, getattr(config, "text_config", None)):
        size = getattr(owner, "vocab_size", None)
        if isinstance(size, int):
            return size
    return 100


def _size(config: Any, name: str, default: int) -> int:
    size = getattr(config, name, None)
    return size if isinstance(size, int) else default


def _pixels(config: Any) -> str:
    owner = getattr(config, "vision_config", None) or config
    size = getattr(owner, "image_size", None)
    height = size if isinstance(size, int) else 32
    return f"torch.randn({SAMPLES}, {_size(owner, 'num_channels', 3)}, {height}, {height})"


def _timm(model: torch.nn.Module) -> Iterable[Recipe]:
    """Images of the size of timm's configuration, or small ones where a model takes any."""
    settings: Any = getattr(model, "default_cfg", None) or {}
    channels, height, width = settings.get("input_size", (3, 224, 224))
    classes = int(getattr(model, "num_classes", 10) or 10)
    sizes = [(height, width)] if settings.get("fixed_input_size") else [(64, 64), (height, width)]
    for tall, wide in sizes:
        images = f"torch.randn({4 * SAMPLES}, {channels}, {tall}, {wide})"
        batch = {"images": images, "classes": f"torch.randint({classes}, ({4 * SAMPLES},))"}
        yield Recipe(_dictionary(batch), _CLASSIFY.format(input="images"), "a model of timm, images of its size")


_CLASSIFY = 'return functional.cross_entropy(model(batch["{input}"]).float(), batch["classes"])\n'


def _plain(model: torch.nn.Module) -> Iterable[Recipe]:
    """Input of the first layer: features, images, signals or tokens; the loss is the mean square of the output."""
    shapes = {
        torch.nn.Linear: lambda layer: f"torch.randn(64, {layer.in_features})",
        torch.nn.Conv1d: lambda layer: f"torch.randn(8, {layer.in_channels}, 64)",
        torch.nn.Conv2d: lambda layer: f"torch.randn(8, {layer.in_channels}, 32, 32)",
        torch.nn.Conv3d: lambda layer: f"torch.randn(2, {layer.in_channels}, 16, 16, 16)",
        torch.nn.Embedding: lambda layer: f"torch.randint({layer.num_embeddings}, (8, {TOKENS}))",
    }
    makers: dict[type, Callable[[Any], str]] = shapes
    for layer in model.modules():
        maker = makers.get(type(layer))
        if maker is not None:
            body = 'outputs = model(batch["inputs"])\nreturn (outputs.float() - batch["targets"]).square().mean()\n'
            inputs = maker(layer)
            shape = _output_shape(model, inputs)
            if shape is not None:
                note = (
                    f"the inputs are those of the first layer, {type(layer).__name__}; targets and loss are "
                    "placeholders: write yours in their place, or name them with --batch and --loss"
                )
                batch = {"inputs": inputs, "targets": f"torch.randn({', '.join(map(str, shape))})"}
                yield Recipe(_dictionary(batch), body, note)
            return


def _output_shape(model: torch.nn.Module, inputs: str) -> tuple[int, ...] | None:
    with torch.no_grad():
        output = _called(lambda: model(_evaluated(inputs)))
    return tuple(output.shape) if isinstance(output, torch.Tensor) else None


def _called(function: Callable[[], Any]) -> Any:
    """Return what a function returns, in a region where it runs in none without; None where it runs in neither."""
    for enabled in (False, True):
        with contextlib.suppress(Exception), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return function()
    return None


def _dictionary(batch: dict[str, str]) -> str:
    rows = "".join(f'        "{name}": {source},\n' for name, source in batch.items())
    return f"{{\n{rows}    }}"


def _evaluated(source: str) -> Any:
    """Return what an expression of this module makes: it has no text of a user's."""
    return eval(source, {"torch": torch})  # noqa: S307  # written above, of whole numbers


def _runs(model: torch.nn.Module, recipe: Recipe) -> bool:
    """Return whether a recipe's loss runs and can be differentiated."""
    names: dict[str, Any] = {"torch": torch, "functional": torch.nn.functional}
    body = "".join(f"    {line}\n" for line in recipe.loss.splitlines())
    exec(f"def loss(model, batch):\n{body}", names)  # noqa: S102  # written above
    loss = _called(lambda: names["loss"](model, _evaluated(recipe.batch)))
    return isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad
