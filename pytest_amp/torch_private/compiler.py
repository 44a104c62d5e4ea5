"""torch.compile's graphs, their operators, and settings without a public API."""

from __future__ import annotations

import importlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pytest_amp.precision import dtype_name
from pytest_amp.torch_private.gone import PrivateApiGone


def _module(name: str) -> Any:
    """Import the module ``name``; PrivateApiGone if there is none."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise PrivateApiGone(name) from None


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(_module(module), name)
    except AttributeError:
        raise PrivateApiGone(f"{module}.{name}") from None


def _settings(module: str, *names: str) -> Any:
    """Return a module of settings that has all of ``names``; PrivateApiGone for the first missing one."""
    config = _module(module)
    for name in names:
        if not hasattr(config, name):
            raise PrivateApiGone(f"{module}.{name}")
    return config


def compiled_graphs() -> int:
    """Count the graphs that Dynamo has passed to a back end so far; PrivateApiGone without its counters."""
    return int(_attribute("torch._dynamo.utils", "counters")["stats"]["unique_graphs"])


def graph_breaks() -> Counter[str]:
    """Count the graph breaks of Dynamo so far, by the titles of their reasons.

    Empty without its counters of them: the titles are for a message.
    """
    try:
        counters = _attribute("torch._dynamo.utils", "counters")
    except PrivateApiGone:
        return Counter()
    titles = Counter[str]()
    for kind in ("graph_break", "unimplemented"):
        for reason, number in counters.get(kind, {}).items():
            titles[str(reason).partition("\n")[0].strip()] += number
    return titles


def skipped_cuda_graphs() -> int:
    """Count the graphs that inductor has not put into a CUDA graph so far; PrivateApiGone without its counters."""
    return int(_attribute("torch._dynamo.utils", "counters")["inductor"]["cudagraph_skips"])


def cuda_graph_trees(index: int) -> int:
    """Count the CUDA graph trees of the GPU ``index``; 0 before the first. PrivateApiGone without their manager."""
    manager = _attribute("torch._inductor.cudagraph_trees", "get_manager")(index, create_if_none_exists=False)
    return 0 if manager is None else sum(1 for _ in manager.get_roots())


def cpp_compiler() -> str | None:
    """Return inductor's C++ compiler, or None if it finds none; PrivateApiGone without its lookup function."""
    find = _attribute("torch._inductor.cpp_builder", "get_cpp_compiler")
    missing = _attribute("torch._inductor.exc", "InvalidCxxCompiler")
    try:
        return str(find())
    except missing:
        return None


@contextmanager
def compile_settings() -> Iterator[None]:
    """Let inductor compile in this process only, and raise the errors of a back end.

    Inductor's worker processes would outlive the tests, and ``suppress_errors`` would run functions in eager that do
    not compile. Raises PrivateApiGone without these settings.

    Inductor assumes the CPU's widest vectors instead of testing them: the test compiles three programs and starts
    Python three times in each process. ``pytest_amp.compiled.lacking`` tests them by compiling a function, and calls
    ``vectors_are_tried`` where that fails. The latency of guards, which torch measures for a log by flushing the
    CPU's caches after each compilation, is not measured.
    """
    inductor = _settings("torch._inductor.config", "compile_threads")
    dynamo = _settings("torch._dynamo.config", "suppress_errors")
    with (
        inductor.patch(compile_threads=1),
        dynamo.patch(suppress_errors=False),
        _vectors_tried(inductor, by_torch=False),
        _untraced(),
        _guards_untimed(),
    ):
        yield


def random_as_eager() -> AbstractContextManager[object]:
    """Let inductor draw random numbers as eager does, so that dropout drops the same elements.

    The numbers come from the same generators in the same order. Inductor may choose other kernels with this setting and
    recompute more in backward, so it is used only for cases that draw random numbers. Raises PrivateApiGone without
    ``torch._inductor.config.fallback_random``.
    """
    inductor = _settings("torch._inductor.config", "fallback_random")
    scope: AbstractContextManager[object] = inductor.patch(fallback_random=True)
    return scope


def numpy_draws_itself() -> AbstractContextManager[object]:
    """Let compiled code draw from numpy's generator what a model draws from it, instead of from torch's.

    Dynamo traces ``numpy.random`` as torch operators, which draw other numbers and advance torch's generator, so that
    dropout after them drops other elements, too. With this setting it breaks the graph there, which ``fullgraph``
    refuses. Raises PrivateApiGone without ``torch._dynamo.config.use_numpy_random_stream``.
    """
    dynamo = _settings("torch._dynamo.config", "use_numpy_random_stream")
    scope: AbstractContextManager[object] = dynamo.patch(use_numpy_random_stream=True)
    return scope


def taken_apart() -> AbstractContextManager[object]:
    """Decompose operators in Python inside the block, as torch's tracers do, while they still run in eager.

    On a CPU, ``dropout`` is then ``native_dropout``, which multiplies by 1 / (1 - p) in float32; without it,
    ``dropout`` multiplies by a noise tensor of the input's dtype, which rounds 1 / (1 - p). Raises PrivateApiGone
    without ``torch._dispatch.python.enable_python_dispatcher``.
    """
    scope: AbstractContextManager[object] = _attribute("torch._dispatch.python", "enable_python_dispatcher")()
    return scope


@contextmanager
def compile_workers(count: int) -> Iterator[None]:
    """Let inductor compile in ``count`` processes, which end with the block; max-autotune compiles hundreds of kernels.

    Use it inside ``compile_settings``. Raises PrivateApiGone without
    ``torch._inductor.async_compile.shutdown_compile_workers``.
    """
    end = _attribute("torch._inductor.async_compile", "shutdown_compile_workers")
    try:
        with _settings("torch._inductor.config", "compile_threads").patch(compile_threads=count):
            yield
    finally:
        end()


@contextmanager
def vectors_are_tried() -> Iterator[None]:
    """Let inductor test which of the CPU's vector instructions its compiler supports; it caches the result."""
    isa = _module("torch._inductor.cpu_vec_isa")
    saved = [type(isa_class).__bool__ for isa_class in getattr(isa, "supported_vec_isa_list", ())]
    for cached in (getattr(isa, "valid_vec_isa_list", None), *saved):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
    with _vectors_tried(_module("torch._inductor.config"), by_torch=True):
        yield


def _vectors_tried(inductor: Any, *, by_torch: bool) -> AbstractContextManager[object]:
    """Set ``vec_isa_ok``, which says that no test is needed. Without this setting, inductor tests."""
    if not hasattr(inductor.cpp, "vec_isa_ok"):
        return nullcontext()
    setting: AbstractContextManager[object] = inductor.patch({"cpp.vec_isa_ok": None if by_torch else True})
    return setting


@contextmanager
def _guards_untimed() -> Iterator[None]:
    """Disable ``profile_guard_manager``, a third of the time to compile a small function, where torch has it."""
    guards = _module("torch._dynamo.guards")
    timed = getattr(guards, "profile_guard_manager", None)
    if timed is None:
        yield
        return
    guards.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        guards.profile_guard_manager = timed


@contextmanager
def _untraced() -> Iterator[None]:
    """Disable structured traces, unless TORCH_TRACE requests them: they add thousands of lines to a failure's report.

    torch writes them if their logger has a handler, and pytest (9.2) adds one to each logger that does not propagate.
    """
    log = logging.getLogger("torch.__trace")
    before = log.propagate, log.disabled
    if "TORCH_TRACE" not in os.environ:
        log.propagate, log.disabled = True, True
    try:
        yield
    finally:
        log.propagate, log.disabled = before


@contextmanager
def backward_without_region() -> Iterator[None]:
    """Trace a compiled backward pass with autocast off, instead of in the region of the forward pass.

    Raises PrivateApiGone without ``torch._functorch.config.backward_pass_autocast`` (torch 2.8 and older).
    """
    config = _settings("torch._functorch.config", "backward_pass_autocast")
    with config.patch(backward_pass_autocast="off"):  # noqa: S106  # a pass of autograd
        yield


@dataclass(frozen=True)
class Traced:
    """One operator of a traced graph: its overload, and the dtypes of its floating tensor arguments in their order."""

    operator: str
    dtypes: tuple[str, ...]


def tracing_backend(forward: list[Traced], backward: list[Traced]) -> Callable[..., Any]:
    """Return a back end for torch.compile that runs AOTAutograd's graphs and records the operators of both passes.

    Raises PrivateApiGone without ``torch._dynamo.backends.common.aot_autograd``.
    """
    aot_autograd = _attribute("torch._dynamo.backends.common", "aot_autograd")
    boxed = _attribute("functorch.compile", "make_boxed_func")

    def compiler(nodes: list[Traced]) -> Callable[..., Any]:
        def compile_graph(graph_module: Any, _inputs: Any) -> Any:
            nodes.extend(_nodes(graph_module))
            return boxed(graph_module.forward)

        return compile_graph

    backend: Callable[..., Any] = aot_autograd(fw_compiler=compiler(forward), bw_compiler=compiler(backward))
    return backend


def _nodes(graph_module: Any) -> Iterator[Traced]:
    import torch

    overload: Any = torch._ops.OpOverload
    for node in graph_module.graph.nodes:
        if not isinstance(node.target, overload):
            continue
        values = [argument.meta.get("val") for argument in node.all_input_nodes]
        floating = [v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
        yield Traced(node.target.name(), tuple(dtype_name(dtype) for dtype in floating))


def aot_compile(program: Any, package: str) -> None:
    """Compile an exported ``program`` into the file ``package``; PrivateApiGone without aoti_compile_and_package."""
    _attribute("torch._inductor", "aoti_compile_and_package")(program, package_path=package)


def aot_load(package: str) -> Callable[..., Any]:
    """Load the function that AOTInductor compiled into ``package``; PrivateApiGone without aoti_load_package."""
    loaded: Callable[..., Any] = _attribute("torch._inductor", "aoti_load_package")(package)
    return loaded


def compiles_itself(module: object) -> bool:
    """Return whether ``module`` is a result of ``torch.compile``, or was compiled in place by its ``compile`` method.

    The former is of a class of torch._dynamo, the latter has ``_compiled_call_impl`` (torch/nn/modules/module.py).
    Where both are missing, the result is False, and an error of Dynamo is reported in its own words.
    """
    by_dynamo = type(module).__module__.startswith("torch._dynamo")
    return by_dynamo or getattr(module, "_compiled_call_impl", None) is not None
