"""Detectors, segmentation and video of torchvision, on small backbones."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.real_models.model import Batch, RealModel


class Backbone(nn.Module):
    """Three convolutions of stride two; the maps of the last two by the names "0" and "1"."""

    out_channels = 16

    def __init__(self) -> None:
        """Create layers with frozen BatchNorm, as detectors have it."""
        from torchvision.ops import FrozenBatchNorm2d

        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), FrozenBatchNorm2d(16), nn.ReLU())
        self.fine = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1, bias=False), FrozenBatchNorm2d(16), nn.ReLU())
        self.coarse = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1, bias=False), FrozenBatchNorm2d(16), nn.ReLU())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return two maps of 16 channels."""
        fine = self.fine(self.stem(x))
        return OrderedDict([("0", fine), ("1", self.coarse(fine))])


def _anchors() -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    return AnchorGenerator(sizes=((8, 16), (16, 32)), aspect_ratios=((0.5, 1.0, 2.0),) * 2)


def _retinanet() -> nn.Module:
    from torchvision.models.detection import RetinaNet

    return RetinaNet(Backbone(), num_classes=4, min_size=64, max_size=64, anchor_generator=_anchors()).train()


def _mask_rcnn() -> nn.Module:
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.faster_rcnn import TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
    from torchvision.ops import MultiScaleRoIAlign

    return MaskRCNN(
        Backbone(),
        num_classes=None,
        min_size=64,
        max_size=64,
        rpn_anchor_generator=_anchors(),
        rpn_pre_nms_top_n_train=60,
        rpn_post_nms_top_n_train=20,
        rpn_batch_size_per_image=64,
        box_batch_size_per_image=32,
        box_roi_pool=MultiScaleRoIAlign(["0", "1"], output_size=4, sampling_ratio=2),
        box_head=TwoMLPHead(16 * 4 * 4, 32),
        box_predictor=_box_predictor(32, 4),
        mask_roi_pool=MultiScaleRoIAlign(["0", "1"], output_size=6, sampling_ratio=2),
        mask_head=MaskRCNNHeads(16, (16,), 1),
        mask_predictor=_mask_predictor(16, 16, 4),
    ).train()


def _box_predictor(channels: int, classes: int) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

    return FastRCNNPredictor(channels, classes)


def _mask_predictor(channels: int, hidden: int, classes: int) -> nn.Module:
    from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor

    return MaskRCNNPredictor(channels, hidden, classes)


def _pictures_with_boxes() -> Batch:
    """Return two pictures of noise, 64 by 64 pixels, with two boxes each, their classes and masks."""
    targets = []
    for _ in range(2):
        corner = torch.randint(4, 28, (2, 2)).float()
        boxes = torch.cat([corner, corner + torch.randint(10, 30, (2, 2))], dim=1)
        rows, columns = torch.arange(64)[None, :, None], torch.arange(64)[None, None, :]
        left, top, right, bottom = boxes.T[:, :, None, None]
        masks = (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)
        targets.append({"boxes": boxes, "labels": torch.randint(1, 4, (2,)), "masks": masks.to(torch.uint8)})
    return {"pictures": list(torch.rand(2, 3, 64, 64)), "targets": targets}


def _pictures_of_boxes() -> Batch:
    """Return such pictures with brighter pixels in the boxes."""
    batch = _pictures_with_boxes()
    for picture, target in zip(batch["pictures"], batch["targets"], strict=True):
        picture.add_(target["masks"].any(0))
    return batch


def _sum_of_losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    parts: dict[str, Tensor] = model(batch["pictures"], batch["targets"])
    return {"loss": torch.stack([part.float() for part in parts.values()]).sum(), **parts}


def _deeplab() -> nn.Module:
    from torchvision.models.segmentation import DeepLabV3
    from torchvision.models.segmentation.deeplabv3 import ASPP
    from torchvision.models.segmentation.fcn import FCNHead

    class Features(Backbone):
        """The same maps by the names that segmentation asks for."""

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            """Return the coarse map as ``out`` and the fine one as ``aux``."""
            maps = super().forward(x)
            return OrderedDict([("out", maps["1"]), ("aux", maps["0"])])

    head = nn.Sequential(ASPP(16, [2, 4], 16), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 1))
    return DeepLabV3(Features(), head, FCNHead(16, 5)).train()


def _pictures_with_classes() -> Batch:
    return {"pictures": torch.randn(4, 3, 48, 48), "classes": torch.randint(5, (4, 48, 48))}


def _both_heads(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    outputs = model(batch["pictures"])
    main, auxiliary = (functional.cross_entropy(outputs[name], batch["classes"]) for name in ("out", "aux"))
    return {"loss": main + 0.5 * auxiliary, "out": outputs["out"]}


def _mobilenet_v2() -> nn.Module:
    from torchvision.models import MobileNetV2

    settings = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]  # expansion, channels, blocks, stride
    return MobileNetV2(num_classes=5, inverted_residual_setting=settings).train()


def _labelled_pictures() -> Batch:
    return {"pictures": torch.randn(8, 3, 64, 64), "classes": torch.randint(5, (8,))}


def _video_swin() -> nn.Module:
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    return SwinTransformer3d(
        patch_size=[2, 4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[2, 4, 4],
        stochastic_depth_prob=0.1,
        num_classes=5,
    ).train()


def _labelled_clips() -> Batch:
    return {"pictures": torch.randn(4, 3, 4, 32, 32), "classes": torch.randint(5, (4,))}


def _classified(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch["pictures"])
    return {"loss": functional.cross_entropy(logits, batch["classes"]), "logits": logits}


_row = partial(RealModel, library="torchvision")

MODELS = (
    _row(
        name="retinanet",
        shows="anchors, focal loss, boxes that are checked for NaN",
        build=_retinanet,
        steps=60,
        rate=3e-4,
        batch=_pictures_of_boxes,
        loss=_sum_of_losses,
    ),
    _row(
        name="mask_rcnn",
        shows="proposals, non-maximum suppression, RoIAlign, samples by randperm, masks",
        build=_mask_rcnn,
        batch=_pictures_with_boxes,
        loss=_sum_of_losses,
    ),
    _row(
        name="deeplabv3",
        shows="dilated convolutions, pooling of whole pictures with BatchNorm, dropout 0.5, two heads",
        build=_deeplab,
        steps=40,
        rate=3e-3,
        batch=_pictures_with_classes,
        loss=_both_heads,
    ),
    _row(
        name="mobilenet_v2",
        shows="inverted residuals, ReLU6, BatchNorm, dropout 0.2",
        build=_mobilenet_v2,
        batch=_labelled_pictures,
        loss=_classified,
        dtypes={"features.*.conv.0.0": "low", "features.*.conv.0.1": "low", "classifier.1": "low"},
        selected=True,
    ),
    _row(
        name="video_swin",
        shows="three-dimensional windows, stochastic depth by rows",
        build=_video_swin,
        batch=_labelled_clips,
        loss=_classified,
    ),
)
