"""What torch.compile does: graphs that it made, what is in them, and settings that have no public door."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pytest_amp.precision import dtype_name
from pytest_amp.torch_private.gone import PrivateApiGone


def _module(name: str) -> Any:
    """The module called ``name``; PrivateApiGone if there is none."""
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
    """The module of settings, which has those called ``names``; PrivateApiGone for the first that it has not."""
    found = _module(module)
    for name in names:
        if not hasattr(found, name):
            raise PrivateApiGone(f"{module}.{name}")
    return found


def compiled_graphs() -> int:
    """How many graphs Dynamo has handed to a back end so far; raises PrivateApiGone without its counters."""
    return int(_attribute("torch._dynamo.utils", "counters")["stats"]["unique_graphs"])


def skipped_cuda_graphs() -> int:
    """How many graphs inductor has refused to put into a CUDA graph so far; PrivateApiGone without its counters."""
    return int(_attribute("torch._dynamo.utils", "counters")["inductor"]["cudagraph_skips"])


def cuda_graph_trees(index: int) -> int:
    """How many CUDA graph trees the GPU ``index`` has; 0 before the first. PrivateApiGone without their manager."""
    manager = _attribute("torch._inductor.cudagraph_trees", "get_manager")(index, create_if_none_exists=False)
    return 0 if manager is None else sum(1 for _ in manager.get_roots())


def cpp_compiler() -> str | None:
    """The C++ compiler that inductor uses, or None where it finds none; PrivateApiGone if it cannot be asked."""
    find = _attribute("torch._inductor.cpp_builder", "get_cpp_compiler")
    missing = _attribute("torch._inductor.exc", "InvalidCxxCompiler")
    try:
        return str(find())
    except missing:
        return None


@contextmanager
def compile_settings() -> Iterator[None]:
    """Inductor compiles in this process alone, and an error of a back end is raised.

    Inductor's worker processes would outlive the tests, and ``suppress_errors`` would run in eager what does
    not compile. Raises PrivateApiGone without these settings.

    A CPU's widest vectors are used untried, for which inductor would compile three programs and start Python as
    often in each process: ``pytest_amp.compiled.lacking`` tries them, by compiling, and calls
    ``vectors_are_tried`` where that fails. Nor is the latency of guards measured, for a log, by flushing the CPU's
    caches behind each compilation.
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
    """Inductor draws random numbers as eager does, from the same generators in the same order: the same is dropped.

    It may choose other kernels and compute more again going back than without, so it is for what draws alone. Raises
    PrivateApiGone without ``torch._inductor.config.fallback_random``.
    """
    inductor = _settings("torch._inductor.config", "fallback_random")
    scope: AbstractContextManager[object] = inductor.patch(fallback_random=True)
    return scope


def taken_apart() -> AbstractContextManager[object]:
    """What is called within is taken apart in Python as torch's tracers take it apart, and runs in eager all the same.

    On a CPU ``dropout`` then is ``native_dropout``, which multiplies by 1 / (1 - p) in float32; called otherwise it
    multiplies by a noise of the input's dtype, in which that number is rounded. Raises PrivateApiGone without
    ``torch._dispatch.python.enable_python_dispatcher``.
    """
    scope: AbstractContextManager[object] = _attribute("torch._dispatch.python", "enable_python_dispatcher")()
    return scope


@contextmanager
def compile_workers(count: int) -> Iterator[None]:
    """Inductor compiles in ``count`` processes, where kernels are chosen out of hundreds; they end with the block.

    Within ``compile_settings``. Raises PrivateApiGone without ``torch._inductor.async_compile``'s way to end them.
    """
    end = _attribute("torch._inductor.async_compile", "shutdown_compile_workers")
    try:
        with _settings("torch._inductor.config", "compile_threads").patch(compile_threads=count):
            yield
    finally:
        end()


@contextmanager
def vectors_are_tried() -> Iterator[None]:
    """Inductor finds out by itself which vectors of the CPU its compiler knows; what it finds it keeps."""
    isa = _module("torch._inductor.cpu_vec_isa")
    kept = [type(each).__bool__ for each in getattr(isa, "supported_vec_isa_list", ())]
    for cached in (getattr(isa, "valid_vec_isa_list", None), *kept):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
    with _vectors_tried(_module("torch._inductor.config"), by_torch=True):
        yield


def _vectors_tried(inductor: Any, *, by_torch: bool) -> AbstractContextManager[object]:
    """``vec_isa_ok``: what says that no trial is needed. Where there is no such setting, inductor tries."""
    if not hasattr(inductor.cpp, "vec_isa_ok"):
        return nullcontext()
    setting: AbstractContextManager[object] = inductor.patch({"cpp.vec_isa_ok": None if by_torch else True})
    return setting


@contextmanager
def _guards_untimed() -> Iterator[None]:
    """Without ``profile_guard_manager``, a third of what a small function takes to compile; where it is gone, with."""
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
    """Without structured traces, unless TORCH_TRACE asks for them: thousands of lines in the report of a failure.

    torch makes them where their logger has a handler, and pytest (9.2) gives one to each that does not propagate.
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
    """A compiled backward pass is traced with autocast off, and not in the region of forward.

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
    """A back end for torch.compile that runs what AOTAutograd traced, and writes down the operators of both passes.

    Raises PrivateApiGone without ``torch._dynamo.backends.common.aot_autograd``.
    """
    aot_autograd = _attribute("torch._dynamo.backends.common", "aot_autograd")
    boxed = _attribute("functorch.compile", "make_boxed_func")

    def compiler(nodes: list[Traced]) -> Callable[..., Any]:
        def compile_graph(graph_module: Any, _inputs: Any) -> Any:
            nodes.extend(_nodes(graph_module))
            return boxed(graph_module.forward)

        return compile_graph

    made: Callable[..., Any] = aot_autograd(fw_compiler=compiler(forward), bw_compiler=compiler(backward))
    return made


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
    """The function that AOTInductor has compiled into ``package``; PrivateApiGone without aoti_load_package."""
    loaded: Callable[..., Any] = _attribute("torch._inductor", "aoti_load_package")(package)
    return loaded
