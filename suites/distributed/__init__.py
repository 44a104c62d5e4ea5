"""Several processes under mixed precision: their collectives, the dtypes of these, and agreement with one process.

There are two ranks, started by torch's own launcher: gloo on a CPU, NCCL with two GPUs.
"""

from pytest_amp.families import Family

FAMILY = Family("distributed", devices=2)
