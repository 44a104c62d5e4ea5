"""Find the origin of a non-finite value: the operator call that returned it although its arguments were finite.

The origin includes the module, the source line and the cause. The search runs the step again, after a check has
detected a non-finite value. A call that returns infinities in float32 as well, such as one that creates a mask of -inf,
is reported only if there is no other candidate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from pytest_amp.account import receive
from pytest_amp.cases import Case, Realised
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.lineage import Lineage, Record
from pytest_amp.numerics.oracle.module_places import Direction
from pytest_amp.numerics.sites import in_words
from pytest_amp.numerics.step import Region, run_step
from pytest_amp.torch_private import PrivateApiGone


@dataclass(frozen=True)
class Origin:
    """Call that returns inf or NaN for finite arguments.

    ``number`` is the index of the call in the step. ``module`` is the path of its module. ``line`` is the line of user
    code: for a call in the backward pass it is the line of the forward call, unless the backward pass is written in
    Python. ``event``, ``cause`` and ``advice`` describe the event, its cause, and a way to prevent it.
    """

    number: int
    operator: str
    module: str
    direction: Direction
    line: str | None
    event: str
    cause: str
    advice: str

    @property
    def place(self) -> str:
        """The operator, module, pass and line."""
        line = "" if self.line is None else f", at {self.line}"
        return f"{self.operator} in {self.module}, {self.direction.value} pass{line}"

    @property
    def now(self) -> str:
        """Text for the argument ``now`` of a failure: the place and the event."""
        return f"{self.place}: {self.event}"

    @property
    def likely(self) -> str:
        """Text for the argument ``likely`` of a failure: the cause and the advice."""
        return f"{self.cause}; take {self.advice}"

    def __str__(self) -> str:
        """Return a description in one line."""
        return f"{self.now}: {self.likely}"


class NotFinite(AmpFailure):
    """Failure of a step with non-finite tensors; ``origin`` is the operator that caused them, None if unknown."""

    def __init__(self, headline: str, origin: Origin | None) -> None:
        """Create the failure. ``headline`` is its first line, which names the tensors that are not finite."""
        self.origin = origin
        super().__init__(
            headline,
            now=f"{_NO_ORIGIN if origin is None else origin.now}, on torch {torch.__version__}",
            likely=None if origin is None else origin.likely,
        )


_NO_ORIGIN = "no operator makes it of finite values when the step is run again"


def origin_in_step(  # noqa: PLR0913  # keywords of one step
    case: Case,
    realised: Realised,
    device: torch.device,
    region: Region,
    *,
    seed: int,
    loss_scale: float = 1.0,
    hidden: bool = False,
) -> Origin | None:
    """Run one step of ``case`` in ``region`` and return the origin of its non-finite values; None if all are finite.

    The step runs on a copy of ``realised``. With ``hidden``, the origin may also be that of intermediate values, while
    all results of the step are finite. Intermediate values that are not finite in float32 as well are then ignored.
    """
    origins = _origins_of_step(case, realised, device, region, seed, loss_scale, hidden=hidden)
    if not origins.records:
        return None
    float32_records = _origins_of_step(case, realised, device, contextlib.nullcontext, seed, loss_scale, hidden=True)
    return origins.first(without=float32_records)


@contextlib.contextmanager
def refusals_are_expected() -> Iterator[None]:
    """Suppress exceptions that a model raises for non-finite values: the calls recorded before them are sufficient.

    PrivateApiGone is not raised by the model, and propagates.
    """
    try:
        yield
    except PrivateApiGone:
        raise
    except (Exception, AmpFailure) as error:  # noqa: BLE001  # a model may raise any exception
        receive(error)


@contextlib.contextmanager
def recorded_origins(device: torch.device) -> Iterator[Origins]:
    """Record the origins of non-finite values inside the block. ``Origins.name(model)`` sets the names of modules."""
    lineage = Lineage(device.type)
    origins = Origins(lineage.origins)
    with lineage.on():
        yield origins


def likely_origin(case: Case, realised: Realised, conditions: Conditions, loss_scale: float) -> str | None:
    """Return a description of the origin of non-finite values in mixed precision, for ``likely`` of a failure.

    The result is None if the step is finite when it is rerun.
    """
    device = conditions.device.torch_device
    origin = origin_in_step(case, realised, device, conditions.region, seed=conditions.seed, loss_scale=loss_scale)
    return None if origin is None else str(origin)


def not_finite_in_float32(case: Case, realised: Realised, conditions: Conditions, names: Sequence[str]) -> AmpFailure:
    """Return the failure of a case whose tensors ``names`` are not finite, even without autocast."""
    device = conditions.device.torch_device
    origin = _origins_of_step(case, realised, device, contextlib.nullcontext, conditions.seed, 1.0).first()
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return AmpFailure(
        f"{case.name} is not finite in float32, without autocast ({', '.join(names[:3])}{more})",
        now=conditions.now("the batch, or a parameter, is not finite" if origin is None else origin.now),
        likely="the model, its batch or its loss: there is nothing to compare mixed precision with"
        + ("" if origin is None else f". {origin.cause}; take {origin.advice}"),
    )


@dataclass
class Origins:
    """Calls of a run that return non-finite values for finite arguments.

    ``names`` maps the ``id`` of each module to its path. ``certain`` is whether the results of the run are known to be
    non-finite, so that one of the calls must be their origin.
    """

    records: list[Record]
    names: dict[int, str] = field(default_factory=dict)
    certain: bool = True

    def name(self, model: torch.nn.Module) -> None:
        """Set the names of modules to their paths in ``model``."""
        self.names = {id(module): name for name, module in model.named_modules()}

    def first(self, *, without: Origins | None = None) -> Origin | None:
        """Return the first origin that does not also occur in ``without``, a run in float32.

        If all of them occur there, return the first one, or None if the origin is not ``certain``.
        """
        expected = set() if without is None else {without.key(record) for record in without.records}
        unexpected = [record for record in self.records if self.key(record) not in expected]
        record = next(iter(unexpected or (self.records if self.certain else [])), None)
        if record is None or record.cause is None:
            return None
        return Origin(
            number=record.number,
            operator=record.operator if record.site.node is None else f"{record.operator} (of {record.site.node})",
            module=self.module(record),
            direction=record.site.direction,
            line=record.site.line,
            event=record.cause.event,
            cause=record.cause.reason,
            advice=record.cause.advice,
        )

    def module(self, record: Record) -> str:
        """Return the name that messages use for the module of a call."""
        return in_words(record.site.module, self.names)

    def key(self, record: Record) -> tuple[object, ...]:
        """Return a key by which the same call is identified in another run."""
        site = record.site
        return record.operator, self.module(record), site.direction, site.node, site.line


def _origins_of_step(  # noqa: PLR0913, PLR0917  # the parameters of one step
    case: Case,
    realised: Realised,
    device: torch.device,
    region: Region,
    seed: int,
    loss_scale: float,
    *,
    hidden: bool = False,
) -> Origins:
    """Run one step and return its origins; with ``hidden`` also those of a step whose results are finite."""
    copied, lineage = realised.on(device), Lineage(device.type)
    copied.model.zero_grad(set_to_none=True)
    tensors: list[torch.Tensor] = []
    with refusals_are_expected(), lineage.on():
        step = run_step(case, copied, region, seed=seed, loss_scale=loss_scale, replay=False)
        gradients = [value for value in (*step.gradients.values(), *step.inputs.values()) if value is not None]
        tensors = [*step.outputs.values(), *gradients, *step.buffers.values()]
    nonfinite = [value for value in tensors if not value.isfinite().all()]
    if hidden or not tensors:
        origins = Origins(lineage.origins, certain=False)
    else:
        origins = Origins(lineage.origins_of(nonfinite) if nonfinite else [])
    origins.name(copied.model)
    return origins
