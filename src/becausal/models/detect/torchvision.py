"""Pretrained torchvision detectors: `detect:torchvision:NAME`, with default weights or those after a colon."""

from becausal.models.detect.torch import TorchDetector, wrap
from becausal.models.settings import ModelSettings
from becausal.models.torchvision_hub import fetch


def load(target: str, settings: ModelSettings) -> TorchDetector:
    """The detector of that name. Raises NetworkError if the weights must be downloaded and cannot be."""
    module, _, meta = fetch(target, is_detector=True)
    own = ModelSettings(labels=tuple(str(name) for name in meta.get("categories", ())) or None)
    return wrap(module, settings, own, spec=f"detect:torchvision:{target}", kind="detect:torchvision")
