"""Two records with an example of everything, of the requested size."""

from __future__ import annotations

import random

from pytest_amp.record import Better, Failure, Kind, Observation, Record, Value

HOSTILE = '</script><script>alert("x")</script><b>&amp;'
_TESTS = {"gradients": "test_layers::test_layer", "rules": "test_registered::test_rule"}


def record(version: str, *, size: int = 200, seed: int = 0) -> Record:
    """Return a record of ``size`` operators; another ``seed`` changes a few of them, and makes a test fail."""
    same, of_this_seed = random.Random(7), random.Random(seed)  # noqa: S311  # no secrets
    observations = []
    for number in range(size):
        family, dtype = ("gradients", "rules")[number % 2], ("bf16", "fp16")[number // 2 % 2]
        key, moved = f"{family}/cuda/{dtype}/operator {number}", seed > 0 and of_this_seed.random() < 0.03
        if family == "gradients":
            error = same.random() ** 3 * 0.03 * (3.0 if moved else 1.0)
            result = Observation(key, Kind.ERROR, error, "relative L2", 0.04, test=_TESTS[family])
        elif moved and of_this_seed.random() < 0.5:
            continue
        else:
            result = Observation(key, Kind.RULE, "promote" if moved else "fp32", test=_TESTS[family])
        observations.append(result)
    speedup = 3.1 if seed == 0 else 2.0
    scales = ["65536", "65536", "32768", "65536"]
    observations += [
        Observation(
            *("speed/cuda/bf16/transformer/over-tf32/device/speedup", Kind.RATIO, speedup, "times", 2.5),
            interval=(speedup * 0.98, speedup * 1.02),
            better=Better.HIGHER,
            test="test_speedups::test_speedup",
        ),
        Observation("scaler/cuda/fp16/decoder/scale", Kind.STATE, [*scales], test="test_steps::test_step"),
        Observation(f"project/cuda/bf16/{HOSTILE}", Kind.STATE, HOSTILE, test="test_own::test_it"),
        Observation(
            "project/cuda/bf16/tokens", Kind.MEASURE, 1000 + 200 * seed, "1/s", better=Better.HIGHER, test="t::t"
        ),
    ]
    failures = (Failure("rules/cuda/bf16/test_registered::test_rule[mm]", f"AmpFailure: {HOSTILE}"),) if seed else ()
    ran = {f"cuda-{dtype} {family}": (test,) for dtype in ("bf16", "fp16") for family, test in _TESTS.items()}
    provenance: dict[str, Value] = {
        "torch": version,
        "date": "2026-11-28T07:00:00+00:00",
        "seed": 0,
        "devices": {"cuda": {"gpu": "NVIDIA H100", "cudnn": f"9.{seed}"}},
        "command": HOSTILE,
    }
    return Record(tuple(observations), provenance, {"cuda-bf16 rules": {"passed": size}}, ran=ran, failures=failures)
