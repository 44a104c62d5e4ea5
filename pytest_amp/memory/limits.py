"""The check of the memory that a step saves for backward, and of its peak."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.memory.passes import Passes
from pytest_amp.memory.peaks import Allocator, Peak, growth, peak_of, tensor_peak
from pytest_amp.memory.saved import Saved, saved_bytes
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.record import Observe
from pytest_amp.text.amounts import counted
from pytest_amp.text.table import as_table, in_bytes

__tracebackhide__ = is_usage_error

#: Steps over which memory may not grow.
STEPS = 4


@dataclass(frozen=True)
class MemoryUse:
    """Memory that a step saves for backward and its peak, in float32 and in mixed precision.

    ``tensors`` and ``tensors_fp32`` are the peaks of the tensors that a step allocates, in bytes, without workspaces of
    libraries. ``peak`` and ``peak_fp32`` are the allocator's, and None if it has no statistics; the values of float32
    are None for a case that runs only inside a region.
    """

    saved: Saved
    saved_fp32: Saved | None
    peak: Peak | None
    peak_fp32: Peak | None
    tensors: int
    tensors_fp32: int | None

    @property
    def saved_ratio(self) -> float | None:
        """Bytes saved for backward, mixed precision over float32; 1 if neither saves any."""
        if self.saved_fp32 is None:
            return None
        return _ratio(self.saved.bytes, self.saved_fp32.bytes)

    @property
    def tensor_ratio(self) -> float | None:
        """Peak of the step's tensors, mixed precision over float32."""
        return None if self.tensors_fp32 is None else _ratio(self.tensors, self.tensors_fp32)

    @property
    def peak_ratio(self) -> float | None:
        """Peak allocated memory, mixed precision over float32."""
        if self.peak is None or self.peak_fp32 is None:
            return None
        return _ratio(self.peak.allocated, self.peak_fp32.allocated)

    def __str__(self) -> str:
        """Return a table of saved bytes, and of peaks if available, next to float32's."""
        rows = [_row("kept for backward", self.saved.bytes, None if self.saved_fp32 is None else self.saved_fp32.bytes)]
        rows.append(_row("peak of tensors", self.tensors, self.tensors_fp32))
        if self.peak is not None:
            wide = None if self.peak_fp32 is None else self.peak_fp32.allocated
            rows.append(_row("peak allocated", self.peak.allocated, wide))
        return as_table(("", "mixed precision", "float32", "ratio"), rows)


def _row(name: str, amp: int, fp32: int | None) -> tuple[str, str, str, str]:
    if fp32 is None:
        return name, in_bytes(amp), "", ""
    return name, in_bytes(amp), in_bytes(fp32), f"{_ratio(amp, fp32):.2f}"


def _ratio(amp: int, fp32: int) -> float:
    if fp32:
        return amp / fp32
    return float("inf") if amp else 1.0


def check_memory(  # noqa: PLR0913  # keywords of one check
    case: Case,
    conditions: Conditions,
    observe: Observe,
    *,
    plain: Case | None,
    ceiling: float | None = None,
    peak_ceiling: float | None = None,
) -> MemoryUse:
    """Compare the memory of a step with manual casts, ceilings, and previous steps.

    ``plain`` is the case that runs in float32 for ``case``: itself, or a wider copy; None if there is none. See
    ``Amp.check_memory``. Raises AmpFailure, and AmpUsageError for a limit of peaks on a device without statistics, and
    for a limit relative to float32 if nothing runs in float32.
    """
    for name, limit in (("ceiling", ceiling), ("peak_ceiling", peak_ceiling)):
        if limit is not None and plain is None:
            raise AmpUsageError(
                f"{name}={limit!r}, and {case.name} runs within a region only, so that float32 takes nothing"
            )
    if peak_ceiling is not None and not Allocator(conditions.device).counts:
        raise AmpUsageError(
            f"peak_ceiling={peak_ceiling!r}, and nothing counts peaks on {conditions.device.key}; "
            "expected there: ceiling"
        )
    passes = Passes(case, conditions)
    saved, peak = _saved(passes), peak_of(passes, passes.amp())
    tensors = tensor_peak(passes, passes.amp())
    saved_fp32 = peak_fp32 = tensors_fp32 = None
    if plain is not None:
        wide = passes if plain is case else Passes(plain, conditions)
        saved_fp32, peak_fp32 = saved_bytes(wide, contextlib.nullcontext), peak_of(wide, contextlib.nullcontext)
        tensors_fp32 = tensor_peak(wide, contextlib.nullcontext)
    use = MemoryUse(saved, saved_fp32, peak, peak_fp32, tensors, tensors_fp32)
    _check_growth(passes)
    _observe(case.name, use, observe, ceiling, peak_ceiling)
    if use.saved_ratio is not None:
        _check_ceiling(passes, "keeps for backward", use.saved_ratio, ceiling, use.saved)
    if use.peak is not None and use.peak_ratio is not None:
        _check_ceiling(passes, "takes at its peak", use.peak_ratio, peak_ceiling, use.saved)
    return use


def _observe(name: str, use: MemoryUse, observe: Observe, ceiling: float | None, peak_ceiling: float | None) -> None:
    observe(f"{name}/bytes saved", use.saved.bytes, kind="count", unit="bytes")
    if use.saved_fp32 is not None and use.saved_ratio is not None:
        observe(f"{name}/bytes saved in fp32", use.saved_fp32.bytes, kind="count", unit="bytes")
        observe(f"{name}/bytes saved over fp32", use.saved_ratio, kind="ratio", allowed=ceiling)
    if use.peak is not None and use.peak_fp32 is not None and use.peak_ratio is not None:
        observe(f"{name}/peak of tensors", use.tensors, kind="bytes", unit="bytes", better="lower")
        # It includes workspaces of libraries, which some releases keep between calls and others allocate for each call.
        observe(f"{name}/peak allocated", use.peak.allocated, kind="bytes", unit="bytes")
        observe(f"{name}/peak allocated in fp32", use.peak_fp32.allocated, kind="bytes", unit="bytes")
        # Reserved memory comes in blocks and depends on earlier allocations: less is not better.
        observe(f"{name}/peak reserved", use.peak.reserved, kind="bytes", unit="bytes")
        observe(f"{name}/peak allocated over fp32", use.peak_ratio, kind="ratio", allowed=peak_ceiling)


def _saved(passes: Passes) -> Saved:
    """Return what autocast saves for backward. Raises AmpFailure if these are not the bytes of manual casts."""
    saved, region = saved_bytes(passes, passes.amp()), passes.manual_region()
    if region is None:
        return saved
    expected = saved_bytes(passes, region)
    if saved != expected:  # the first pass may set a model's state, such as the shift of an integer layer norm
        saved = saved_bytes(passes, passes.amp())
    if saved != expected:
        raise AmpFailure(
            f"{passes.case.name} keeps {saved.bytes} bytes for backward under {passes.conditions}",
            label_before="manual",
            before=f"{expected.bytes} bytes in {counted(expected.storages, 'storage')} ({_named(expected)})",
            now=passes.conditions.now(f"{saved.bytes} bytes in {counted(saved.storages, 'storage')} ({_named(saved)})"),
            likely="an operator keeps its input in both dtypes, or runs in another dtype than its rule says",
        )
    return saved


def _named(saved: Saved) -> str:
    return ", ".join(f"{dtype} {count}" for dtype, count in saved.by_dtype.items()) or "none"


def _check_growth(passes: Passes) -> None:
    """Check that memory does not grow from step to step."""
    bytes_alive = growth(passes, passes.amp(), steps=STEPS)
    if len(set(bytes_alive)) > 1:  # it is chance how many reference cycles Python's collector has left
        bytes_alive = growth(passes, passes.amp(), steps=STEPS, collect=True)
    if len(set(bytes_alive)) > 1:
        raise AmpFailure(
            f"{passes.case.name} holds more memory after each step under {passes.conditions}",
            label_before="step 2",
            before=f"{bytes_alive[0]} bytes",
            now=passes.conditions.now(
                f"{', '.join(map(str, bytes_alive[1:]))} bytes after the next {len(bytes_alive) - 1} steps"
            ),
            likely="the cast cache outlives its region, or the model keeps tensors of earlier steps",
        )


def _check_ceiling(passes: Passes, what: str, ratio: float, ceiling: float | None, saved: Saved) -> None:
    if ceiling is not None and ratio > ceiling * passes.conditions.tolerance_scale:
        wide = 4 * saved.by_dtype.get("float32", 0) > saved.bytes
        raise AmpFailure(
            f"{passes.case.name} {what} {ratio:.3g} times what float32 does, under {passes.conditions}",
            label_before="ceiling",
            before=f"{ceiling:g} times",
            now=passes.conditions.now(f"{ratio:.3g} times; {saved.bytes} bytes kept for backward ({_named(saved)})"),
            likely="activations are kept in float32, or in both dtypes"
            if wide
            else "low-precision copies of weights outweigh the savings of activations; less so in larger batches",
        )
