"""Guard of torch's process-wide state that a mixed-precision test may change: capture, compare, restore."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Device types whose autocast state is guarded; types unknown to this torch are left out.
AUTOCAST_TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")


@dataclass(frozen=True)
class Setting:
    """Setting of torch: its name, getter and setter."""

    name: str
    get: Callable[[], object]
    set: Callable[[object], None]


def _autocast(device_type: str) -> list[Setting]:
    import torch

    try:
        torch.is_autocast_enabled(device_type)
    except RuntimeError:  # torch 2.6 has no autocast for mtia
        return []
    return [
        Setting(
            f"autocast enabled ({device_type})",
            lambda: torch.is_autocast_enabled(device_type),
            lambda value: torch.set_autocast_enabled(device_type, bool(value)),
        ),
        Setting(
            f"autocast dtype ({device_type})",
            lambda: torch.get_autocast_dtype(device_type),
            lambda value: torch.set_autocast_dtype(device_type, _dtype(value)),
        ),
    ]


def autocast_on(*device_types: str) -> list[str]:
    """Return the device types for which autocast is on; it is never on for a type that torch does not know."""
    return [name for name in dict.fromkeys(device_types) if any(setting.get() is True for setting in _autocast(name))]


def _dtype(value: object) -> torch.dtype:
    import torch

    assert isinstance(value, torch.dtype)
    return value


def nesting_depth() -> int:
    """Return the number of autocast regions around this thread; the counter can only be read by changing it."""
    import torch

    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _set_nesting(value: object) -> None:
    import torch

    assert isinstance(value, int)
    while (depth := nesting_depth()) != value:
        if depth > value:
            torch.autocast_decrement_nesting()
        else:
            torch.autocast_increment_nesting()
    if value == 0:
        torch.clear_autocast_cache()


def _attribute(name: str, holder: object, attribute: str) -> list[Setting]:
    if not hasattr(holder, attribute):
        return []
    return [Setting(name, lambda: getattr(holder, attribute), lambda value: setattr(holder, attribute, value))]


def _float32_matmul_precision() -> str:
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to read it if the newer settings disagree
        return "overridden"


def _float32_arithmetic() -> list[Setting]:
    """Return the settings of fp32 arithmetic, through ``fp32_precision`` where it exists (torch 2.9).

    After a write to ``fp32_precision``, reading ``allow_tf32`` raises, so only one of the two is read.
    ``float32_matmul_precision`` comes first, since writing it changes the others.
    """
    import torch

    # Any: torch's stubs lack the newer settings.
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    older = Setting(
        "float32 matmul precision",
        _float32_matmul_precision,
        lambda value: None if value == "overridden" else torch.set_float32_matmul_precision(str(value)),
    )
    if not hasattr(torch.backends, "fp32_precision"):
        return [
            older,
            *_attribute("TF32 (cuda matmul)", matmul, "allow_tf32"),
            *_attribute("TF32 (cudnn)", cudnn, "allow_tf32"),
        ]
    holders = {
        "": torch.backends,
        " (cuda matmul)": matmul,
        " (cudnn)": cudnn,
        " (cudnn conv)": cudnn.conv,
        " (cudnn rnn)": cudnn.rnn,
        " (mkldnn matmul)": mkldnn.matmul,
        " (mkldnn conv)": mkldnn.conv,
        " (mkldnn rnn)": mkldnn.rnn,
    }
    newer = [
        s for name, holder in holders.items() for s in _attribute(f"fp32 precision{name}", holder, "fp32_precision")
    ]
    return [older, *newer]


def _default_device_name() -> str:
    import torch

    try:
        return str(torch.get_default_device())
    except AttributeError:  # torch 2.6, once the default device has been set to None
        return "cpu"


def _default_device() -> list[Setting]:
    import torch

    # Reset with None: set_default_device("cpu") would install a mode that intercepts every factory call.
    return [
        Setting(
            "default device",
            _default_device_name,
            lambda value: torch.set_default_device(None if value == "cpu" else str(value)),
        )
    ]


def _attention() -> list[Setting]:
    """Return the settings that enable each kernel of scaled_dot_product_attention; the kernels round differently."""
    from torch.backends import cuda

    kernels = ("flash", "mem_efficient", "math", "cudnn")
    return [
        Setting(
            f"attention kernel ({kernel})",
            getattr(cuda, f"{kernel}_sdp_enabled"),
            getattr(cuda, f"enable_{kernel}_sdp"),
        )
        for kernel in kernels
        if hasattr(cuda, f"{kernel}_sdp_enabled")
    ]


def settings(device_type: str | None = None) -> list[Setting]:
    """Return all guarded settings; ``device_type`` adds the autocast settings of an out-of-tree device."""
    import torch

    device_types = dict.fromkeys((*AUTOCAST_TYPES, device_type or "cpu"))
    result = [setting for name in device_types for setting in _autocast(name)]
    result += [
        Setting(
            "autocast cache",
            torch.is_autocast_cache_enabled,
            lambda value: torch.set_autocast_cache_enabled(bool(value)),
        ),
        Setting("autocast nesting depth", nesting_depth, _set_nesting),
        Setting("default dtype", torch.get_default_dtype, lambda value: torch.set_default_dtype(_dtype(value))),
        Setting("grad mode", torch.is_grad_enabled, lambda value: _set_grad_mode(bool(value))),
        Setting("anomaly mode", torch.is_anomaly_enabled, lambda value: _set_anomaly_mode(bool(value))),
        Setting(
            "deterministic algorithms",
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            _set_deterministic,
        ),
        Setting("CPU threads", torch.get_num_threads, lambda value: torch.set_num_threads(int(str(value)))),
        *_attribute("cudnn deterministic", torch.backends.cudnn, "deterministic"),
        *_attribute("cudnn benchmark", torch.backends.cudnn, "benchmark"),
        *_attribute("cudnn enabled", torch.backends.cudnn, "enabled"),
        *_attribute(
            "reduced-precision reduction (bf16)", torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"
        ),
        *_attribute(
            "reduced-precision reduction (fp16)", torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"
        ),
        *_attribute("fp16 accumulation", torch.backends.cuda.matmul, "allow_fp16_accumulation"),
        *_default_device(),
        *_attention(),
        *_float32_arithmetic(),
    ]
    return result


def _set_grad_mode(value: bool) -> None:  # noqa: FBT001  # a setter
    import torch

    torch.set_grad_enabled(value)


def _set_anomaly_mode(value: bool) -> None:  # noqa: FBT001  # a setter
    import torch

    torch.autograd.set_detect_anomaly(value)


def _set_deterministic(value: object) -> None:
    import torch

    assert isinstance(value, tuple)
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


class StateGuard:
    """Snapshot of torch's global state, which is compared with the state at the end, and restored."""

    def __init__(self, device_type: str | None = None) -> None:
        """Capture the current state, including that of ``device_type``."""
        self._settings = settings(device_type)
        self._before = self._read()

    @property
    def threads(self) -> int:
        """Return the captured number of CPU threads."""
        return int(str(self._before["CPU threads"]))

    def _read(self) -> dict[str, object]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {setting.name: setting.get() for setting in self._settings}

    def restore(self) -> Mapping[str, tuple[object, object]]:
        """Restore everything; return the changed settings, as (before, after) by name."""
        after = self._read()
        leaked = {name: (before, after[name]) for name, before in self._before.items() if before != after[name]}
        if leaked:
            from pytest_amp.torch_private import backend_flags_settable

            # Restore all settings, in order: writing one may change another.
            with warnings.catch_warnings(), backend_flags_settable():
                warnings.simplefilter("ignore")
                for setting in self._settings:
                    setting.set(self._before[setting.name])
        return leaked
