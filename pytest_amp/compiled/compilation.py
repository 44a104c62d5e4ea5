"""Arguments of ``torch.compile`` for a case."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_amp.cases import Case, Outputs, expect_flag
from pytest_amp.failure import AmpUsageError, is_usage_error
from pytest_amp.numerics import Conditions
from pytest_amp.text.quoted import quoted

__tracebackhide__ = is_usage_error


class Where(enum.Enum):
    """Position of the autocast region: around the call of the compiled function, or inside the function."""

    AROUND = "around"
    INSIDE = "inside"


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """Arguments of ``torch.compile`` and the position of the region. ``options`` and ``mode`` exclude each other."""

    backend: str = "inductor"
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: tuple[tuple[str, Any], ...] = ()
    region: Where = Where.AROUND

    def __str__(self) -> str:
        """Return the name in observations and failures, ``inductor,dynamic``: printable, without blanks."""
        shapes = {None: None, True: "dynamic", False: "static"}[self.dynamic]
        inside = "inside" if self.region is Where.INSIDE else None
        options = [name for name, _ in self.options]
        return ",".join(filter(None, (self.backend, self.mode, shapes, *options, inside)))

    def check(self) -> None:
        """Raise AmpUsageError for a back end or a mode that torch does not have, and for flags that are not bool."""
        expect_flag("fullgraph", self.fullgraph)
        if self.dynamic is not None:
            expect_flag("dynamic", self.dynamic)
        if self.backend not in torch.compiler.list_backends(exclude_tags=()):
            valid = ", ".join(["eager", "aot_eager", *torch.compiler.list_backends()])
            raise AmpUsageError(f"backend={self.backend!r}; expected {valid}")
        self.apply(lambda: None)  # checks the mode, and compiles nothing before the first call

    @property
    def fuses(self) -> bool:
        """Return whether kernels are fused, so that a value that eager rounds between kernels need not be rounded."""
        return self.backend not in {"eager", "aot_eager"}

    @property
    def needs_toolchain(self) -> bool:
        """Return whether a C++ compiler or Triton is needed."""
        return self.backend == "inductor"

    def apply(self, function: Callable[..., Any], backend: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Compile ``function``, by another back end if given. Raises AmpUsageError for arguments that torch refuses."""
        try:
            compiled: Callable[..., Any] = torch.compile(
                function,
                backend=backend or self.backend,
                mode=self.mode,
                fullgraph=self.fullgraph,
                dynamic=self.dynamic,
                options=dict(self.options) or None,
            )
        except RuntimeError as error:  # for a mode, or a mode together with options
            raise AmpUsageError(quoted(error)) from None
        return compiled

    def case(self, case: Case, conditions: Conditions, backend: Callable[..., Any] | None = None) -> Case:
        """Return ``case`` with its loss function compiled, and the model in it; INSIDE, it enters the region."""
        device_type, dtype, loss = conditions.device.type, conditions.precision.dtype, case.loss

        def inside(model: torch.nn.Module, batch: Any) -> Outputs:
            with torch.autocast(device_type, dtype):
                return loss(model, batch)

        return replace(case, loss=self.apply(loss if self.region is Where.AROUND else inside, backend))
