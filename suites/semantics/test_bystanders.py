"""Features unrelated to autocast: contexts that leave a region unchanged, and work that a region leaves unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional, init
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import fusion, parametrize, prune
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from pytest_amp.amp import SuiteAmp

from .models import drawn, loss_of, small, state_of, statistic
from .state import State, expect_state, product_dtype


def _same(x: Tensor) -> Tensor:
    return x


class _Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Use deterministic algorithms; torch warns and continues if an operator has none."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


#: Contexts of torch that change something other than the dtypes in which a region computes.
CONTEXTS: dict[str, Callable[[], Any]] = {
    "enable_grad": torch.enable_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(True),
    "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "set_multithreading_enabled": lambda: torch.autograd.set_multithreading_enabled(False),
    "profile": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "record_function": lambda: torch.profiler.record_function("a part"),
    "FlopCounterMode": lambda: FlopCounterMode(display=False),
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(_same, _same),
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
    "fork_rng": lambda: torch.random.fork_rng(devices=[]),
    "sdpa_kernel": lambda: sdpa_kernel([SDPBackend.MATH]),
    "parametrize.cached": parametrize.cached,
    "nullcontext": contextlib.nullcontext,
    "forward_ad.dual_level": forward_ad.dual_level,
    "TorchFunctionMode": _Functions,
    "check_sparse_tensor_invariants": torch.sparse.check_sparse_tensor_invariants,
    "safe_globals": lambda: torch.serialization.safe_globals([nn.Linear]),
    "allow_mutation_on_saved_tensors": torch.autograd.graph.allow_mutation_on_saved_tensors,
    "set_detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "autograd.profiler.profile": torch.autograd.profiler.profile,
    "mkldnn.flags": lambda: torch.backends.mkldnn.flags(enabled=True),
    "cudnn.flags": lambda: torch.backends.cudnn.flags(enabled=True, allow_tf32=torch.backends.cudnn.allow_tf32),
    "torch.device": lambda: torch.device("cpu"),
    "set_checkpoint_early_stop": lambda: checkpoint.set_checkpoint_early_stop(enable=False),
    "use_deterministic_algorithms": _deterministic,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:Deterministic behavior was enabled")
@pytest.mark.filterwarnings("ignore:.*[Pp]rofil", "ignore:TF32 acceleration")
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_context_leaves_the_region_alone(amp: SuiteAmp, context: str) -> None:
    """The region is unchanged in a context and after it; loss and gradients are bitwise those of a run without it."""
    results = []
    for within in (contextlib.nullcontext, CONTEXTS[context]):
        torch.manual_seed(amp.config.seed)
        model, batch = small(amp)
        with amp.autocast():
            before = State.now(amp.device.type), product_dtype(amp.device.torch_device)
            with within():
                inside = State.now(amp.device.type), product_dtype(amp.device.torch_device)
                loss = loss_of(model, batch)
                loss.backward()
            after = State.now(amp.device.type), product_dtype(amp.device.torch_device)
        expect_state(amp, f"in {context}", inside, before, likely="the context switches autocast")
        expect_state(amp, f"after {context}", after, before, likely="the context does not restore the previous state")
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    different = [index for index, pair in enumerate(zip(*results, strict=True)) if not torch.equal(*pair)]
    assert not different, f"{context} changes the loss (0) or gradients: {different}"


#: Decorators of torch that change something other than the dtypes in which a region computes.
DECORATORS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "no_grad, bare": lambda: torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "record_function": lambda: torch.profiler.record_function("a part"),
    "compiler.disable": lambda: torch.compiler.disable,
    "jit.ignore": lambda: torch.jit.ignore,
    "sdpa_kernel": lambda: sdpa_kernel([SDPBackend.MATH]),
}


@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_decorator_leaves_the_region_alone(amp: SuiteAmp, decorator: str) -> None:
    """Evaluation decorated with ``no_grad`` and called in a region runs in the region."""

    def function() -> tuple[State, torch.dtype]:
        return State.now(amp.device.type), product_dtype(amp.device.torch_device)

    decorated = DECORATORS[decorator]()(function)
    grad = torch.is_grad_enabled()
    with amp.autocast():
        before, inside, after = function(), decorated(), function()
    assert torch.is_grad_enabled() is grad
    expect_state(amp, f"in a function decorated with {decorator}", inside, before, likely="it switches autocast")
    expect_state(
        amp,
        f"after a function decorated with {decorator}",
        after,
        before,
        likely="it does not restore the previous state",
    )


def _filled(function: Callable[[Tensor], object], *shape: int) -> Callable[[SuiteAmp], list[Tensor]]:
    def fill(amp: SuiteAmp) -> list[Tensor]:
        result = torch.empty(shape, device=amp.device.torch_device)
        function(result)
        return [result]

    return fill


def _new_module(build: Callable[[], nn.Module]) -> Callable[[SuiteAmp], list[Tensor]]:
    return lambda _: state_of(build())


def _on_float32(function: Callable[[Tensor], Any], *shape: int) -> Callable[[SuiteAmp], list[Tensor]]:
    def call(amp: SuiteAmp) -> list[Tensor]:
        result = function(drawn(amp, *shape))
        return [result] if isinstance(result, Tensor) else list(result)

    return call


def _created(function: Callable[[torch.device], Tensor]) -> Callable[[SuiteAmp], list[Tensor]]:
    return lambda amp: [function(amp.device.torch_device)]


def _on_both_dtypes(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[SuiteAmp], list[Tensor]]:
    """Return ``function`` of a float32 tensor and a low-precision one."""
    return lambda amp: [function(drawn(amp, 8, 8), drawn(amp, 8, 8).to(amp.dtype))]


def _assigned(amp: SuiteAmp) -> list[Tensor]:
    model, other = nn.Linear(20, 20), nn.Linear(20, 20)
    model.to(amp.device.torch_device).load_state_dict(other.state_dict(), assign=True)
    return state_of(model)


def _averaged(amp: SuiteAmp) -> list[Tensor]:
    average = AveragedModel(nn.Linear(8, 8).to(amp.device.torch_device))
    for _ in range(2):
        average.update_parameters(nn.Linear(8, 8).to(amp.device.torch_device))
    return state_of(average)


def _normalised(amp: SuiteAmp) -> list[Tensor]:
    model = nn.BatchNorm1d(80).to(amp.device.torch_device)
    update_bn([drawn(amp, 8, 80), drawn(amp, 8, 80)], model)
    return state_of(model)


def _stepped(build: Callable[[nn.Parameter], torch.optim.Optimizer]) -> Callable[[SuiteAmp], list[Tensor]]:
    """Return the weights and the optimizer's state after two steps on random gradients."""

    def step(amp: SuiteAmp) -> list[Tensor]:
        weight = nn.Parameter(drawn(amp, 8, 8))
        optimizer = build(weight)
        for _ in range(2):
            weight.grad = drawn(amp, 8, 8)
            optimizer.step()
        return [weight.detach(), *(value for value in optimizer.state[weight].values() if isinstance(value, Tensor))]

    return step


def _fused(amp: SuiteAmp) -> list[Tensor]:
    convolution, norm = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)
    init.uniform_(norm.weight)
    init.uniform_(statistic(norm.running_var))
    fused = fusion.fuse_conv_bn_eval(convolution.eval(), norm.eval())
    return state_of(fused.to(amp.device.torch_device))


def _vectors(amp: SuiteAmp) -> list[Tensor]:
    model = nn.Linear(8, 8).to(amp.device.torch_device)
    return [nn.utils.parameters_to_vector(model.parameters()).detach()]


def _from_a_vector(amp: SuiteAmp) -> list[Tensor]:
    model = nn.Linear(8, 8).to(amp.device.torch_device)
    nn.utils.vector_to_parameters(drawn(amp, 72), model.parameters())
    return state_of(model)


def _pruned(amp: SuiteAmp) -> list[Tensor]:
    model = prune.l1_unstructured(nn.Linear(8, 8).to(amp.device.torch_device), "weight", 12)
    retained = model.weight.detach()
    return [retained, *state_of(prune.remove(model, "weight"))]


#: Work that may run inside a region. It has no product, so that each result is the same as outside.
WORK: dict[str, Callable[[SuiteAmp], list[Tensor]]] = {
    **{
        f"init.{name}": _filled(getattr(init, name), 12, 12)
        for name in (
            *("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_"),
            *("kaiming_normal_", "orthogonal_", "eye_"),
        )
    },
    "init.dirac_": _filled(init.dirac_, 4, 4, 3),
    "init.sparse_": _filled(lambda x: init.sparse_(x, 0.3), 12, 12),
    "Linear": _new_module(lambda: nn.Linear(12, 12)),
    "Conv2d": _new_module(lambda: nn.Conv2d(4, 8, 3)),
    "LSTM": _new_module(lambda: nn.LSTM(8, 8, bidirectional=True)),
    "Embedding": _new_module(lambda: nn.Embedding(20, 8)),
    "TransformerEncoderLayer": _new_module(lambda: nn.TransformerEncoderLayer(8, 2, 16)),
    "weight_norm": _new_module(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(12, 12))),
    "load_state_dict, assign": _assigned,
    "AveragedModel": _averaged,
    "update_bn": _normalised,
    "fuse_conv_bn_eval": _fused,
    "parameters_to_vector": _vectors,
    "vector_to_parameters": _from_a_vector,
    "pruning": _pruned,
    **{
        f"{name}, made and stepped": _stepped(lambda weight, name=name: getattr(torch.optim, name)([weight], lr=0.1))  # type: ignore[misc]
        for name in ("AdamW", "Adagrad", "RMSprop")
    },
    "SGD with momentum, made and stepped": _stepped(lambda weight: torch.optim.SGD([weight], lr=0.1, momentum=0.9)),
    "a causal mask": _created(lambda device: nn.Transformer.generate_square_subsequent_mask(8, device=device)),
    "double": lambda amp: state_of(nn.Linear(8, 8).to(amp.device.torch_device).double()),
    # New tensors
    "tensor": _created(lambda device: torch.tensor([0.1, 0.2, 0.3], device=device)),
    "full": _created(lambda device: torch.full((4,), 0.1, device=device)),
    "full_like": _on_float32(lambda x: torch.full_like(x, 0.1), 4),
    "new_full": _on_float32(lambda x: x.new_full((4,), 0.1), 4),
    "new_tensor": _on_float32(lambda x: x.new_tensor([0.1, 0.2]), 4),
    "arange": _created(lambda device: torch.arange(0, 1, 0.1, device=device)),
    "linspace": _created(lambda device: torch.linspace(0, 1, 12, device=device)),
    "logspace": _created(lambda device: torch.logspace(0, 1, 12, device=device)),
    "eye": _created(lambda device: torch.eye(4, device=device)),
    "zeros and ones": _created(lambda device: torch.cat([torch.zeros(4, device=device), torch.ones(4, device=device)])),
    "hann_window": _created(lambda device: torch.hann_window(12, device=device)),
    "randn_like": _on_float32(torch.randn_like, 8, 8),
    "normal": _created(lambda device: torch.normal(0.0, 1.0, (8, 8), device=device)),
    # A float32 tensor and a low-precision one: torch promotes to float32
    "+, both dtypes": _on_both_dtypes(lambda x, y: x + y),
    "+, the low one first": _on_both_dtypes(lambda x, y: y + x),
    "-, both dtypes": _on_both_dtypes(lambda x, y: x - y),
    "*, both dtypes": _on_both_dtypes(lambda x, y: x * y),
    "/, both dtypes": _on_both_dtypes(lambda x, y: x / y),
    "add_, both dtypes": _on_both_dtypes(lambda x, y: x.add_(y)),
    "mul_, both dtypes": _on_both_dtypes(lambda x, y: x.mul_(y)),
    "+=, a low sum": _on_both_dtypes(lambda x, y: y.add_(x)),
    "sub with a factor, both dtypes": _on_both_dtypes(lambda x, y: torch.sub(x, y, alpha=0.3)),
    "where, both dtypes": _on_both_dtypes(lambda x, y: torch.where(x > 0, x, y)),
    "maximum, both dtypes": _on_both_dtypes(torch.maximum),
    "copy_, both dtypes": _on_both_dtypes(lambda x, y: torch.zeros_like(x).copy_(y)),
    "masked_fill with a number": _on_float32(lambda x: x.masked_fill(x > 0, 0.1), 8, 8),
    "clamp": _on_float32(lambda x: x.clamp(-0.3, 0.3), 8, 8),
    "a number times": _on_float32(lambda x: 0.1 * x + 0.3, 8, 8),
    "embedding": _on_float32(lambda x: functional.embedding(torch.arange(8, device=x.device), x), 8, 8),
    "embedding, max_norm": _on_float32(
        lambda x: functional.embedding(torch.arange(8, device=x.device), x.clone(), max_norm=1.0), 8, 8
    ),
    "pad_sequence": _on_float32(lambda x: nn.utils.rnn.pad_sequence([x, x[:2]]), 4, 8),
    "pack_padded_sequence": _on_float32(
        lambda x: nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2])).data, 4, 2, 8
    ),
    "copy_": _on_float32(lambda x: torch.empty_like(x).copy_(x), 8, 8),
    "contiguous": _on_float32(lambda x: x.t().contiguous(), 8, 8),
    "topk": _on_float32(lambda x: x.topk(3)[0], 8, 8),
    "sort": _on_float32(lambda x: x.sort(0)[0], 8, 8),
    "unfold": _on_float32(lambda x: functional.unfold(x, 2), 1, 2, 4, 4),
    # Statistics and spectra of float32 values
    "quantile": _on_float32(lambda x: torch.quantile(x, 0.3, dim=1), 8, 9),
    "nanquantile": _on_float32(lambda x: torch.nanquantile(x, 0.3), 8, 9),
    "median": _on_float32(lambda x: x.median(1)[0], 8, 9),
    "histc": _on_float32(lambda x: torch.histc(x, 50), 100, 100),
    "bucketize": _on_float32(lambda x: torch.bucketize(x, torch.linspace(-2, 2, 999, device=x.device)), 100, 100),
    "searchsorted": _on_float32(lambda x: torch.searchsorted(x[0].sort()[0], x), 100, 100),
    "unique": _on_float32(lambda x: x.unique(), 100, 100),
    "rfft": _on_float32(lambda x: torch.view_as_real(torch.fft.rfft(x)), 8, 64),
    "irfft": _on_float32(lambda x: torch.fft.irfft(torch.fft.rfft(x)), 8, 64),
    "fft2": _on_float32(lambda x: torch.view_as_real(torch.fft.fft2(x)), 8, 16),
    "trapezoid": _on_float32(lambda x: torch.trapezoid(x, dx=0.1), 8, 64),
    "diff": _on_float32(lambda x: x.diff(), 8, 64),
    "aminmax": _on_float32(lambda x: torch.stack(torch.aminmax(x, dim=1)), 8, 64),
    "argsort": _on_float32(lambda x: x.argsort(1), 8, 64),
    "std_mean": _on_float32(lambda x: torch.std_mean(x, 1), 8, 64),
    # Random functions of float32 values
    "dropout1d": _on_float32(lambda x: functional.dropout1d(x, 0.4), 8, 4, 6),
    "dropout2d": _on_float32(lambda x: functional.dropout2d(x, 0.4), 8, 4, 3, 3),
    "dropout3d": _on_float32(lambda x: functional.dropout3d(x, 0.4), 8, 4, 2, 2, 2),
    "alpha_dropout": _on_float32(lambda x: functional.alpha_dropout(x, 0.4, training=True), 8, 8),
    "feature_alpha_dropout": _on_float32(lambda x: functional.feature_alpha_dropout(x, 0.4, training=True), 8, 4, 6),
    "rrelu": _on_float32(lambda x: functional.rrelu(x, training=True), 8, 8),
    "gumbel_softmax": _on_float32(lambda x: functional.gumbel_softmax(x, tau=0.5), 8, 8),
    "gumbel_softmax, hard": _on_float32(lambda x: functional.gumbel_softmax(x, tau=0.5, hard=True), 8, 8),
    "multinomial": _on_float32(lambda x: x.abs().multinomial(4), 8, 8),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*dropout2d.*3-D:UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("work", WORK)
def test_work_within_a_region_is_what_it_is_outside(amp: SuiteAmp, work: str) -> None:
    """Build, initialise, save and load models, and collate batches inside a region: bitwise equal to float32."""
    results = []
    for enabled in (False, True):
        torch.manual_seed(amp.config.seed)
        with torch.no_grad(), amp.autocast(enabled=enabled):
            results.append(WORK[work](amp))
    outside, inside = results
    assert outside, "there is nothing to compare"
    assert [x.dtype for x in inside] == [x.dtype for x in outside], f"{work} returns different dtypes within a region"
    different = [index for index, (a, b) in enumerate(zip(outside, inside, strict=True)) if not torch.equal(a, b)]
    assert not different, f"{work} returns different values within a region: results {different}"
