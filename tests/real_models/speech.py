"""Speech models of transformers."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tests.real_models.model import Batch, RealModel, called_with_batch, tokens


def _hubert() -> nn.Module:
    from transformers import HubertConfig, HubertForCTC

    config = HubertConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 4, 2),
        conv_kernel=(10, 8, 4),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        mask_time_length=4,
    )
    return HubertForCTC(config).train()


def _waveforms() -> Batch:
    return {"input_values": torch.randn(2, 2400), "labels": tokens(2, 6, vocabulary=20, first=1)}


def _speecht5() -> nn.Module:
    from transformers import SpeechT5Config, SpeechT5ForTextToSpeech

    config = SpeechT5Config(
        vocab_size=40,
        hidden_size=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=10,
        reduction_factor=2,
        speech_decoder_prenet_units=16,
        speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=16,
        speaker_embedding_dim=8,
        max_text_positions=40,
        max_speech_positions=40,
        use_guided_attention_loss=False,
    )
    return SpeechT5ForTextToSpeech(config).train()


def _text_and_spectrogram() -> Batch:
    return {
        "input_ids": tokens(2, 9, vocabulary=40),
        "labels": torch.randn(2, 16, 10),
        "speaker_embeddings": torch.randn(2, 8),
    }


_row = partial(RealModel, library="transformers", loss=called_with_batch)

MODELS = (
    _row(
        name="hubert",
        shows="masks and dropped layers from numpy and torch, CTC without cuDNN, weight_norm",
        build=_hubert,
        batch=_waveforms,
    ),
    _row(
        name="speecht5",
        shows="text to spectrogram, dropout that is always on, BatchNorm in one dimension",
        build=_speecht5,
        steps=60,
        rate=3e-3,
        batch=_text_and_spectrogram,
    ),
)
