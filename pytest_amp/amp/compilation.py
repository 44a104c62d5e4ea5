"""Checks of torch.compile on a case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_amp.amp.base import Bound
from pytest_amp.failure import is_usage_error

if TYPE_CHECKING:
    from pytest_amp.cases import Case

__tracebackhide__ = is_usage_error


class CompileChecks(Bound):
    """Checks that compare a compiled training step with the same step in eager mode."""

    def check_compiled(
        self,
        case: Case,
        *,
        backend: str = "inductor",
        mode: str | None = None,
        fullgraph: bool = False,
        dynamic: bool | None = None,
    ) -> None:
        """Compare a compiled training step of ``case`` in mixed precision with the same step in eager.

        The arguments are those of ``torch.compile``, which is applied to the case's loss function, and so to the
        model in it; the region is around the call. What must be true:

        - at least one graph was compiled;
        - outputs, gradients and buffers are those of eager, in its order and dtypes, and finite where eager's are;
        - they are no further from float64 than rounding explains, by the bounds of ``check_gradients``;
        - in the median they are not more exact than half of that: autocast would have been off;
        - with ``eager`` and ``aot_eager``, which call eager's kernels or their parts, they are no further from eager
          than kernels that sum in another order.

        Compiled code is kept in a folder of this session for each device and dtype, not in the user's caches; what
        was compiled before is forgotten (``torch.compiler.reset``). Observed as ``<case>/<arguments>/graphs``,
        ``…/excess`` and ``…/equal``. Raises AmpFailure; also where ``inductor`` has no C++ compiler or no Triton,
        unless --amp-allow-missing names ``compiler``, which skips the test.
        """
        from pytest_amp import compiled
        from pytest_amp.numerics.running import ErrorsOfCase

        self._expect_case(case, "check_compiled")
        compilation = compiled.Compilation(backend=backend, mode=mode, fullgraph=fullgraph, dynamic=dynamic)
        with compiled.sandbox(compiled.folder(self._request, self._target)):
            compilation.check()
            if compilation.needs_toolchain:
                self._need_compiler()
            with ErrorsOfCase(case, self._conditions):
                compiled.check_compiled(case, compilation, self._conditions, self._observing(case))

    def _need_compiler(self) -> None:
        """Fail or skip the test where inductor has no compiler; see ``SuiteAmp.need_compiler``."""
        from pytest_amp import compiled

        reason = compiled.lacking(self.device)
        if reason is not None:
            self._missing("compiler", reason)
