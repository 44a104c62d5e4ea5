"""Cases, each a model, a batch and a loss that checks run, and the built-in ones."""

from pytest_amp.cases.case import (
    Case,
    Outputs,
    Realised,
    loss_of,
    map_tensors,
    named_buffers,
    named_tensors,
    outputs_by_name,
)
from pytest_amp.cases.decoder import Attention, Decoder, DecoderSize
from pytest_amp.cases.given import (
    MakeOptimizer,
    expect_case,
    expect_flag,
    expect_graph,
    expect_iterations,
    expect_maker,
    expect_names,
    expect_number,
    expect_python,
    expect_step,
    made_of,
    takes,
)
from pytest_amp.cases.limits import adds_up_low_convolutions, lacks_lstm_kernel
from pytest_amp.cases.raised import failure_of, in_one_line, own_frames, passes
from pytest_amp.cases.seeding import seeded
from pytest_amp.cases.wider import wider_zoo
from pytest_amp.cases.zoo import Kinks, SequenceClassifier, classification, cnn, decoder, lstm, mlp, zoo

__all__ = [
    "Attention",
    "Case",
    "Decoder",
    "DecoderSize",
    "Kinks",
    "MakeOptimizer",
    "Outputs",
    "Realised",
    "SequenceClassifier",
    "adds_up_low_convolutions",
    "classification",
    "cnn",
    "decoder",
    "expect_case",
    "expect_flag",
    "expect_graph",
    "expect_iterations",
    "expect_maker",
    "expect_names",
    "expect_number",
    "expect_python",
    "expect_step",
    "failure_of",
    "in_one_line",
    "lacks_lstm_kernel",
    "loss_of",
    "lstm",
    "made_of",
    "map_tensors",
    "mlp",
    "named_buffers",
    "named_tensors",
    "outputs_by_name",
    "own_frames",
    "passes",
    "seeded",
    "takes",
    "wider_zoo",
    "zoo",
]
