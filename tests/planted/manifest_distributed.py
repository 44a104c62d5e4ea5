"""Planted defects in processes that compute together: what they send, in which dtype, and who skips."""

from __future__ import annotations

from tests.planted.defect import Defect

DISTRIBUTED = (
    Defect(
        "one_rank_steps_on_inf",
        "skipping on every rank",
        ("suites/distributed/test_scaler.py",),
        "test_ddp_spreads_an_overflow_to_all_ranks[cpu-bf16]",
    ),
    Defect(
        "found_inf_stays_on_its_rank",
        "reducing found_inf",
        ("suites/distributed/test_scaler.py",),
        "test_an_overflow_in_one_shard_is_skipped_by_all[cpu-bf16-none-rank 1-inf]",
    ),
    Defect(
        "reduces_in_bf16",
        "the dtype of the reduction",
        ("suites/distributed/test_fully_shard.py",),
        "test_what_is_sent[cpu-bf16-low, reduced in float32]",
    ),
    Defect(
        "output_dtype_is_ignored",
        "the dtype of the output",
        ("suites/distributed/test_fully_shard.py",),
        "test_what_layers_see_and_what_is_returned[cpu-bf16-low, reduced in float32, output float32]",
    ),
    Defect(
        "shards_are_kept_in_bf16",
        "master weights in float32",
        ("suites/distributed/test_fully_shard.py",),
        "test_a_training_keeps_float32[cpu-bf16-low, reduced in float32]",
    ),
    Defect(
        "compression_divides_after_the_sum",
        "dividing before the sum",
        ("suites/distributed/test_compression.py",),
        "test_gradients_are_divided_before_they_are_summed[cpu-bf16-fp16]",
    ),
    Defect(
        "buckets_are_compressed_unasked",
        "reducing gradients in float32",
        ("suites/distributed/test_data_parallel.py",),
        "test_gradients_travel_in_float32[cpu-bf16-plain]",
    ),
    Defect(
        "no_sync_is_ignored",
        "accumulating without a reduction",
        ("suites/distributed/test_data_parallel.py",),
        "test_no_sync_sends_nothing_and_adds_up[cpu-bf16]",
    ),
    Defect(
        "one_rank_leaves_the_region",
        "autocast on every rank",
        ("suites/distributed/test_data_parallel.py",),
        "test_every_rank_computes_in_the_region[cpu-bf16]",
    ),
    Defect(
        "one_unit_reduces_in_low",
        "the dtype of FSDP1's reduction",
        ("suites/distributed/test_fsdp.py",),
        "test_what_is_sent_and_computed[cpu-bf16-low, reduced in float32]",
    ),
    Defect(
        "shards_add_up_in_low",
        "adding up micro-batches in the reduction's dtype",
        ("suites/distributed/test_fully_shard.py",),
        "test_micro_batches_add_up_before_they_are_sent[cpu-bf16-low, reduced in float32]",
    ),
    Defect(
        "found_inf_of_the_first_rank_counts",
        "reducing found_inf over all ranks",
        ("suites/distributed/test_scaler.py",),
        "test_an_overflow_in_one_shard_is_skipped_by_all[cpu-bf16-none-rank 1-inf]",
    ),
    Defect(
        "buffers_are_sent_low",
        "the buffers that DDP gives to every rank",
        ("suites/distributed/test_data_parallel.py",),
        "test_every_bit_of_the_first_ranks_state_is_sent[cpu-bf16]",
    ),
    Defect(
        "ddp_evaluates_outside_the_region",
        "evaluating in the region",
        ("suites/distributed/test_evaluation.py",),
        "test_ddp_evaluates_in_the_region[cpu-bf16]",
    ),
)
