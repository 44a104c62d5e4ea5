"""Source of a test file with one call of ``amp.check``."""

from __future__ import annotations

from pytest_amp.scaffold.batches import Recipe, build, load, recipe_of

_FILE = '''"""Check of {name} in mixed precision."""

{imports}


def make_batch():
{batch}


def loss_of(model, batch):
{loss}


def test_{test}(amp):
    case = amp.case({builder}, make_batch, loss_of)
    amp.check(case).print()
'''
_UNKNOWN = Recipe(
    'raise NotImplementedError("return a tensor, or a dictionary of tensors, that the model takes")',
    'raise NotImplementedError("return the loss of the model for the batch")\n',
    "fill in make_batch and loss_of, whose inputs are not known",
)


def write_test(model: str, batch: str | None, loss: str | None) -> tuple[str, str]:
    """Return the source of a test file for the model of a name, and what its batch was made from.

    ``model``, ``batch`` and ``loss`` are written ``package.module:name``. Raises ScaffoldError.
    """
    built = build(model)
    for function in (batch, loss):
        if function is not None:
            load(function)
    recipe = _UNKNOWN
    if batch is None or loss is None:
        recipe = recipe_of(built) or _UNKNOWN
    uses_functional = "functional." in recipe.loss and loss is None
    name = model.partition(":")[2]
    text = _FILE.format(
        name=model,
        imports=_imports([model, batch, loss], functional=uses_functional),
        batch=_body(f"return {_call(batch)}()" if batch else _returning(recipe)),
        loss=_body(f"return {_call(loss)}(model, batch)" if loss else recipe.loss),
        test=name.replace(".", "_").lower(),
        builder=_call(model),
    )
    note = recipe.note if batch is None or loss is None else "with the batch and the loss that were named"
    return text, note


def _returning(recipe: Recipe) -> str:
    return recipe.batch if recipe.batch.startswith("raise") else f"return {recipe.batch}"


def _call(name: str | None) -> str:
    module, _, attribute = (name or "").partition(":")
    return f"{module}.{attribute}"


def _imports(names: list[str | None], *, functional: bool) -> str:
    modules = sorted({name.partition(":")[0] for name in names if name is not None})
    lines = [f"import {module}" for module in modules]
    if "torch" not in modules:
        lines.append("import torch")
    if functional:
        lines.append("from torch.nn import functional")
    return "\n".join(lines)


def _body(source: str) -> str:
    first, *rest = source.rstrip("\n").split("\n")
    return "\n".join(
        [f"    {first}", *(line if line.startswith(("    ", "}")) or not line else f"    {line}" for line in rest)]
    )
