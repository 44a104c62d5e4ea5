"""Decoder: causal, of any size, and the same with either implementation of attention."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.cases import Attention, Decoder, DecoderSize, decoder


@pytest.mark.parametrize("attention", Attention)
def test_decoder_is_causal(attention: Attention) -> None:
    model = Decoder(attention=attention)
    tokens = torch.randint(97, (2, 9))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 97
    one, two = model(tokens), model(changed)
    assert torch.allclose(one[:, :5], two[:, :5], atol=1e-5)
    assert not torch.allclose(one[:, 5:], two[:, 5:], atol=1e-2)


def test_implementations_of_attention_agree() -> None:
    result = []
    for attention in Attention:
        torch.manual_seed(0)
        result.append(Decoder(attention=attention).double())
    tokens = torch.randint(97, (2, 9))
    assert torch.allclose(result[0](tokens), result[1](tokens), atol=1e-12)


def test_decoder_has_the_requested_size() -> None:
    size = DecoderSize(layers=3, width=48, heads=6, vocabulary=50)
    case = decoder(size, batch=2, context=7)
    result = case.realise()
    outputs = case.loss(result.model, result.batch)
    assert isinstance(outputs, dict)
    assert outputs["logits"].shape == (2, 7, 50)
    assert len([name for name, _ in result.model.named_parameters() if name.endswith("qkv.weight")]) == 3


def test_width_not_divisible_by_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="a width of 10 cannot be shared by 4 heads"):
        DecoderSize(width=10, heads=4)


def test_targets_are_the_next_tokens() -> None:
    batch = decoder(context=5).realise().batch
    assert torch.equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])
