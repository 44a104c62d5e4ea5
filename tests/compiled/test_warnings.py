"""Compiler warnings do not count as the project's."""

from __future__ import annotations

from tests.project import Project


def test_case_compiles_when_warnings_are_errors(project: Project) -> None:
    """Dynamo warns of each ``torch.autograd.Function`` that it traces."""
    project.file("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    project.write(
        test_it="""
        import torch


        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return 2 * x * gradient


        def test_it(amp):
            case = amp.case(
                lambda: torch.nn.Linear(8, 8),
                lambda: torch.randn(4, 8),
                lambda model, batch: Square.apply(model(batch)).float().mean(),
            )
            amp.check_compiled(case, backend="aot_eager")
        """
    )
    # torch's compiler cannot be imported twice
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-W", "error")
    result.assert_outcomes(passed=1)
