"""Kinds of findings with a short description; docs/findings/ has a page for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "autocast-off": "a disabled region around all or most of the products of a model",
        "backward-in-region": "backward() is called while autocast is on",
        "backward-rounds": "the backward pass of an autograd function casts float32 gradients to a low dtype",
        "constant-out-of-range": "a mask or constant that is infinite in the dtype it is used in",
        "evaluation-precision": "an evaluation in another precision than the training",
        "loss-outside-region": "a loss computed from low-precision values outside of the region",
        "low-angles": "large arguments of sin and cos, positions times frequencies, in a low dtype",
        "low-average": "an average or a sum over iterations that is kept in a low dtype",
        "low-buffer": "a buffer whose updates are rounded to a low dtype",
        "low-log": "a logarithm in a low dtype",
        "low-loss": "a loss, or a term of it, in a low dtype",
        "low-metric": "a metric of an evaluation in a low dtype",
        "low-norm": "mean, variance, squares or norm for a normalisation, in a low dtype",
        "low-optimizer-state": "optimizer state in a low dtype",
        "low-parameters": "trained parameters in a low dtype",
        "low-power": "a power whose exponent is a low-precision tensor",
        "low-running-sum": "a long or cumulative sum that is accumulated in a low dtype",
        "low-softmax": "exponentials and their sum in a low dtype",
        "mixed-gradients": "gradients of a scaled and of an unscaled loss in one step",
        "no-gradient": "an optimizer's step without any gradient",
        "no-region": "a training step, or a part of it, outside of any region",
        "nothing-low": "a region in which no product runs in the low dtype",
        "other-region": "a region in another dtype than the run's",
        "overflow": "finite values that become infinite in the low dtype",
        "own-cast": "a cast to a low dtype that is written in the program",
        "own-region": "a region that the model or the loss opens by itself",
        "rounded-buffer": "a buffer or constant in a low dtype that is widened where it is used",
        "rounded-positions": "whole numbers in a low dtype that does not have all of them",
        "rounded-values": "float32 values that are cast to a low dtype and widened again",
        "useless-widening": "a cast to float32 behind which nothing gains from it",
        "vanished-epsilon": "an epsilon or bound that is zero, or one, in the dtype it is used in",
    }
)
