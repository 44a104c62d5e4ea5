"""Times of both arms against a baseline: on the same card, on another one, and without a yardstick; simulated."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16
from pytest_amp.record import Baseline, Better, Kind, Observation, Record, Value, Verdict, make_key
from pytest_amp.record.times import NOISE, Conditions, Terms, compare_time, conditions_key, terms
from pytest_amp.speed import Demand, Interval, Plan, SpeedConditions, TimeBefore, check_speedup
from pytest_amp.speed.times import KERNELS, kernels_in_words
from tests.observing import Noted
from tests.speed.simulated import SimulatedClock, step_taking
from tests.speed.test_gate import _no_benchmark

__all__ = ["_no_benchmark"]

#: Seconds of the yardsticks of a card.
YARDSTICK = {"tensor-cores": 1e-3, "copy": 7e-5, "launch": 1.3e-6, "host-launch": 4e-6}
CARD = "GPU-1"
#: Key of a device's time.
KEY = make_key("speed", "cuda", "bf16", "sums/over-tf32/device/autocast-time")
#: Calls of an arm in a measurement of twelve quads.
CALLS = 127


def measured_on(gpu: str = CARD, host: str = "a CPU", width: float = 0.0002, **factors: float) -> Conditions:
    """Return conditions whose yardsticks take ``factors`` times as long, by name with underscores."""
    seconds = {name: usual * factors.get(name.replace("-", "_"), 1.0) for name, usual in YARDSTICK.items()}
    return Conditions(gpu, host, {name: (s * (1 - width), s, s * (1 + width)) for name, s in seconds.items()})


def moved_by(name: str, factor: float, gpu: str = CARD, width: float = 0.0002) -> Conditions:
    """Return conditions of which one yardstick takes ``factor`` times as long."""
    return measured_on(gpu, "a CPU", width, **{name.replace("-", "_"): factor})


@dataclass
class Bench:
    """Simulated work, recorded once and compared as often as requested."""

    request: pytest.FixtureRequest
    kind: str = "device"
    before: Record = field(default_factory=lambda: Record((), {}))
    notes: list[str] = field(default_factory=list)
    observed: tuple[Observation, ...] = ()

    def check(
        self,
        reference: float | Iterable[float] = 3.0,
        candidate: float | Iterable[float] = 2.0,
        *,
        place: Conditions | None = None,
        later: Conditions | None = None,
        mode: str = "gate",
        kernels: dict[str, float] | None = None,
        recorded: bool = False,
        floor: float = 0.0,
    ) -> tuple[Observation, ...]:
        """Run one check, with conditions that become ``later`` once they are measured again."""
        where = place or measured_on()
        noted = Noted()
        baseline = Baseline(self.before, {})

        def compared(name: str, interval: Interval, margin: float, beside: Value) -> TimeBefore | None:
            key = make_key("speed", "cuda", "bf16", name)
            before = baseline.before(key)
            if before is None:
                return None
            now = seconds(key, interval, margin)
            run = {conditions_key(key): Observation(conditions_key(key), Kind.MEASURE, beside)}
            old = baseline.before(conditions_key(key))
            recorded_kernels = old.value.get("kernels") if old is not None and isinstance(old.value, dict) else None
            return TimeBefore(baseline.compare(now, run), before, baseline.terms(key, run), recorded_kernels, "a cause")

        conditions = SpeedConditions(
            find_device("cpu"),
            BF16,
            mode,
            observe=noted.observe,
            compare_time=compared,
            measured_on=lambda *_, again=False: ((later or where) if again else where, ""),
            before=self._speedup_before,
            kernels=lambda *_: kernels or {},
            recorded=recorded,
            note=self.notes.append,
        )
        demand = Demand("sums", floor, "tf32", kind=self.kind, plan=Plan(warm_up=0, shortest=0))
        try:
            check_speedup(
                lambda: step_taking(reference, candidate), demand, conditions, self.request, clock=SimulatedClock()
            )
        finally:
            self.observed = tuple(observation_of(name, value, noted.facts[name]) for name, value in noted.items())
        return self.observed

    def record(self, *args: float | Iterable[float], **keywords: object) -> None:
        """Record a healthy check as the baseline."""
        self.before = Record(self.check(*args, recorded=True, **keywords), {})  # type: ignore[arg-type]

    def verdicts(self) -> dict[str, Verdict]:
        """Return the verdicts of the last check's observations about the baseline, by the last part of their names."""
        run = {observation.key: observation for observation in self.observed}
        baseline = Baseline(self.before, {})
        return {key.rpartition("/")[2]: baseline.compare(observation, run).verdict for key, observation in run.items()}

    def _speedup_before(self, name: str) -> Interval | None:
        """Return the interval of a speedup in the baseline."""
        before = Baseline(self.before, {}).before(make_key("speed", "cuda", "bf16", name))
        if before is None or before.interval is None:
            return None
        assert isinstance(before.value, float)
        return Interval(before.interval[0], before.value, before.interval[1], 12)

    def red(self, *args: float | Iterable[float], **keywords: object) -> list[str]:
        """Return the lines of the failure of a check, after its name."""
        with pytest.raises(AmpFailure) as failure:
            self.check(*args, **keywords)  # type: ignore[arg-type]
        return str(failure.value).removeprefix("AmpFailure: ").splitlines()


def seconds(key: str, interval: Interval, margin: float | None) -> Observation:
    ends = (interval.low, interval.high)
    return Observation(key, Kind.SECONDS, interval.median, "s", interval=ends, better=Better.LOWER, margin=margin)


def observation_of(name: str, value: Value, facts: dict[str, object]) -> Observation:
    key = make_key("speed", "cuda", "bf16", name)
    return Observation.from_json({"key": key, "value": value, **{k: as_json(v) for k, v in facts.items()}})


def as_json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@pytest.fixture
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench for device time whose calls are not captured."""
    monkeypatch.setattr("pytest_amp.speed.gate.captured", lambda call, *_: call)
    return Bench(request)


def test_same_times_pass(bench: Bench) -> None:
    bench.record()
    times = {o.name: o for o in bench.check() if o.kind is Kind.SECONDS}
    assert {name: (o.value, o.better) for name, o in times.items()} == {
        "sums/over-tf32/device/float32-time": (3.0, Better.LOWER),
        "sums/over-tf32/device/autocast-time": (2.0, Better.LOWER),
    }
    assert bench.notes == []
    assert set(bench.verdicts().values()) == {Verdict.PASS}


@pytest.mark.parametrize(
    ("reference", "candidate", "says"),
    [
        (3.0, 2.04, "bf16 takes 2 % longer, TF32 as long as before"),
        (3.06, 2.0, "bf16 as long as before, TF32 takes 2 % longer"),
        (3.06, 2.04, "bf16 takes 2 % longer, TF32 takes 2 % longer"),
        (3.0, 2.172, "bf16 takes 8.6 % longer, TF32 as long as before"),
        (2.91, 2.04, "bf16 takes 2 % longer, TF32 takes 3 % less time"),
    ],
)
def test_two_percent_longer_is_red_in_either_arm(bench: Bench, reference: float, candidate: float, says: str) -> None:
    bench.record()
    lines = bench.red(reference, candidate)
    assert lines[0] == f"sums takes longer than in the baseline, in device time: {says}"


@pytest.mark.parametrize(("reference", "candidate"), [(3.03, 2.02), (2.8, 1.9)])
def test_one_percent_longer_and_a_gain_of_both_pass(bench: Bench, reference: float, candidate: float) -> None:
    bench.record()
    assert bench.check(reference, candidate)


def test_single_longer_time_is_not_red(bench: Bench) -> None:
    """The interval of two measurements encloses both; the second one has new arms, and goes on where these ended."""
    bench.record()
    slow_first = [itertools.chain([1.05 * usual] * CALLS, itertools.repeat(usual)) for usual in (3.0, 2.0)]
    bench.check(*slow_first)
    assert bench.verdicts()["autocast-time"] is Verdict.INCONCLUSIVE
    assert bench.verdicts()["speedup"] is Verdict.PASS


LONG = "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_stage4"
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}>(int)"
)


def test_red_names_the_kernel_that_changed_and_the_largest(bench: Bench) -> None:
    bench.record(kernels={LONG: 1.5, COPY: 0.4})
    lines = bench.red(3.06, 2.04, kernels={LONG: 1.51, COPY: 0.43})
    kernels = (
        "changed most: unrolled_elementwise_kern..._kernel_cuda 400 -> 430 ms; "
        "largest: sm80_xmma_wgrad_implicit_...28x64_stage4 1.5e+03 -> 1.51e+03 ms"
    )
    assert lines[1:] == [
        "  baseline  bf16 2000 [2000, 2000] ms, TF32 3000 [3000, 3000] ms; either may take 1.5 % longer",
        "  now       bf16 2040 [2040, 2040] ms, TF32 3060 [3060, 3060] ms; a speedup of 1.5",
        f"  bf16      {kernels}",
        f"  TF32      {kernels}",
        "  likely    a cause",
        "  accept    the same command with --amp-accept",
    ]
    assert len(lines) < 12
    assert max(map(len, lines)) <= 160


def test_speedup_below_a_floor_without_a_baseline_names_the_slowest_kernels(bench: Bench) -> None:
    lines = bench.red(3.0, 2.5, floor=1.5, kernels={LONG: 1.5, COPY: 0.4, "a kernel": 0.1})
    slowest = "sm80_xmma_wgrad_implicit_...28x64_stage4 1.5e+03 ms, unrolled_elementwise_kern..._kernel_cuda 400 ms"
    assert lines[0] == "sums under bf16 autocast is 1.2 times as fast as in TF32, in device time"
    assert [line.split()[0] for line in lines[1:]] == ["floor", "now", "TF32", "bf16", "likely", "accept"]
    assert [line.split(maxsplit=1)[1] for line in lines[3:5]] == [slowest, slowest]
    assert "--amp-baseline with the record of an earlier torch says which arm changed" in lines[5]


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ([], [], ""),
        ([["a", 1e-3, 1.0]], [], ""),
        ([["a", 1e-3, 1.0]], [["a", 2e-3, 1.0]], "largest, and changed most: a 1 -> 2 ms"),
        ([["a", 3e-3, 1.0]], [["b", 1e-3, 1.0]], "changed most: a 3 -> none ms; largest: b none -> 1 ms"),
        (None, [["a", 2e-3, 1.0]], "largest: a 2 ms; the baseline names no kernels"),
        ("a text", [["a", 2e-3, 1.0]], "largest: a 2 ms; the baseline names no kernels"),
    ],
)
def test_kernel_changes_are_described(before: Value, now: Value, says: str) -> None:
    assert kernels_in_words(before, now) == says


def test_unrecorded_kernel_is_not_named_as_changed_most() -> None:
    before: list[Value] = [[f"kernel{number}", 1e-3 + 1e-5 * number, 0.1] for number in range(KERNELS)]
    now: list[Value] = [["kernel7", 1.2e-3, 0.1], ["another", 1.005e-3, 0.1], *before[1:-1]]
    assert kernels_in_words(before, now) == "largest, and changed most: kernel7 1.07 -> 1.2 ms"


def test_another_card_is_judged_by_its_yardstick(bench: Bench) -> None:
    """Its products and its memory are within the noise of the first card's, and so is its time."""
    bench.record()
    other = measured_on("GPU-2", tensor_cores=1.003, copy=1.003)
    bench.check(3.0, 2.0, place=other)
    assert bench.verdicts()["autocast-time"] is Verdict.PASS
    lines = bench.red(3.009, 2.06, place=other)
    assert lines[0].endswith("bf16 takes 2.7 % longer, TF32 as long as before"), "the card takes 0.3 % of the 3 %"


def test_time_on_another_card_is_compared_with_the_translated_one() -> None:
    """Expect a pass for 1.85 % more, of which the card takes 0.4 %."""
    old, new = measured_on("GPU-1", width=0), measured_on("GPU-2", width=0, tensor_cores=1.004, copy=1.006)
    before = seconds(KEY, Interval(2.0, 2.0, 2.0, 12), 0.015)
    how = terms(before, old.to_json(), new.to_json())
    assert how.factors == pytest.approx((1.004, 1.006))
    assert not how.is_same_card
    now = seconds(KEY, Interval(2.037, 2.037, 2.037, 12), 0.015)
    assert compare_time(now, before, how, fair=True).verdict is Verdict.PASS
    assert compare_time(now, before, Terms(), fair=True).verdict is Verdict.REGRESSED


@pytest.mark.parametrize("card", [CARD, "GPU-2"])
@pytest.mark.parametrize(
    ("name", "factor", "text"),
    [
        ("tensor-cores", 1.02, "tensor-cores takes 2.0 % longer"),
        ("copy", 0.97, "copy takes 3.0 % less time"),
        ("launch", 1.02, "launch takes 2.0 % longer"),
    ],
)
def test_yardstick_that_moved_is_inconclusive(bench: Bench, card: str, name: str, factor: float, text: str) -> None:
    bench.record()
    bench.check(3.3, 2.2, place=moved_by(name, factor, gpu=card))
    assert bench.verdicts()["autocast-time"] is Verdict.INCONCLUSIVE
    assert bench.verdicts()["float32-time"] is Verdict.INCONCLUSIVE
    says = f"times are not compared with the baseline: the card runs at another speed than in the baseline: {{}} {text}"
    assert bench.notes == [says.format("the yardstick")]


def test_yardstick_is_measured_again_before_a_red(bench: Bench) -> None:
    """A card that became slower since the process began is no slower torch."""
    bench.record()
    bench.check(3.3, 2.2, later=measured_on(tensor_cores=1.1, copy=1.1))
    assert bench.verdicts()["autocast-time"] is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("name", "limit"), NOISE.items())
def test_yardstick_within_its_noise_has_not_moved(name: str, limit: float) -> None:
    """The interval of either is added to the limit."""
    before = seconds(KEY.replace("/device/", "/step/"), Interval(2.0, 2.0, 2.0, 12), 0.015)
    for share, moved in ((0.9, False), (1.1, True)):
        now = moved_by(name, 1 + share * limit, width=0)
        assert bool(terms(before, measured_on(width=0).to_json(), now.to_json()).reason) == moved


def test_host_launches_do_not_affect_device_time(bench: Bench) -> None:
    bench.record()
    bench.check(place=measured_on(host_launch=2.0))
    assert (bench.verdicts()["autocast-time"], bench.notes) == (Verdict.PASS, [])


@pytest.mark.parametrize("place", [measured_on("GPU-2"), measured_on(host="another CPU")], ids=["card", "host"])
def test_step_time_of_another_card_or_host_is_not_compared(bench: Bench, place: Conditions) -> None:
    bench.kind = "step"
    bench.record()
    bench.check(3.6, 2.4, place=place)
    assert bench.verdicts()["autocast-time"] is Verdict.PASS
    assert len(bench.notes) == 1
    assert "the time of a step is compared on the same card and host only" in bench.notes[0]
    assert bench.red(3.6, 2.4)[0].endswith("in step time: bf16 takes 20 % longer, TF32 takes 20 % longer")


def test_card_without_yardstick_is_compared_with_itself_only(bench: Bench) -> None:
    bench.record(place=Conditions(CARD, "a CPU"))
    assert bench.red(3.0, 2.04, place=Conditions(CARD, "a CPU"))
    bench.check(3.3, 2.2, place=Conditions("GPU-2", "a CPU"))
    assert bench.verdicts()["autocast-time"] is Verdict.INCONCLUSIVE
    assert bench.notes[-1].endswith("another card (GPU-1 before, GPU-2 now), and no yardstick of both")


def test_record_without_times_is_compared_by_its_ratio(bench: Bench) -> None:
    """Records of earlier versions have times without intervals, and no conditions."""
    bench.record()
    earlier = [
        replace(o, interval=None, better=None, margin=None) if o.kind is Kind.SECONDS else o
        for o in bench.before.observations
        if o.kind is not Kind.MEASURE
    ]
    bench.before = Record(tuple(earlier), {})
    bench.check(3.3, 2.2)
    assert bench.notes == ["times are not compared with the baseline: the baseline has no times"]
    assert set(bench.verdicts().values()) <= {Verdict.PASS, Verdict.NEW}
    assert bench.red(3.0, 2.1)[0] == "sums under bf16 autocast is 1.43 times as fast as in TF32, in device time"


@pytest.mark.parametrize("candidate", [2.0, 1.95])
def test_ratio_that_falls_since_float32_gained_is_an_improvement(bench: Bench, candidate: float) -> None:
    bench.record()
    bench.check(2.7, candidate)
    assert bench.verdicts()["float32-time"] is Verdict.IMPROVED
    assert bench.verdicts()["speedup"] is Verdict.IMPROVED
    (note,) = bench.notes
    assert note.startswith("sums: 1.3")
    assert "times as fast as in TF32, 1.5 [1.5, 1.5] in the baseline, is an improvement: bf16 " in note
    assert note.endswith(", TF32 takes 10 % less time")


def test_improvement_keeps_the_required_floor(bench: Bench) -> None:
    bench.record()
    bench.check(2.7, 2.0, floor=1.3)
    lines = bench.red(2.7, 2.0, floor=1.4)
    assert lines[:2] == [
        "sums under bf16 autocast is 1.35 times as fast as in TF32, in device time",
        "  floor     1.4 times, with a margin of 0.5%",
    ]


def test_gain_of_float32_does_not_hide_slower_autocast(bench: Bench) -> None:
    """Neither in the check, nor in a comparison of two records."""
    bench.record()
    assert bench.red(2.7, 2.04)[0].endswith("bf16 takes 2 % longer, TF32 takes 10 % less time")
    bench.before, old = Record((), {}), bench.before
    bench.record(2.7, 2.04)
    bench.before = old
    assert bench.verdicts() == {
        "conditions": Verdict.PASS,
        "float32-time": Verdict.IMPROVED,
        "autocast-time": Verdict.REGRESSED,
        "speedup": Verdict.REGRESSED,
    }


@pytest.mark.parametrize("place", [measured_on("GPU-2"), Conditions("", "a CPU")], ids=["another card", "no UUID"])
def test_gain_of_float32_counts_on_the_same_card_only(bench: Bench, place: Conditions) -> None:
    bench.record()
    assert bench.red(2.7, 2.0, place=place)[0].startswith("sums under bf16 autocast is 1.35 times as fast as in TF32")
