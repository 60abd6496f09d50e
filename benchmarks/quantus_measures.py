"""The metrics of Quantus that `quantus_metrics.py` runs, and their settings; those that it leaves out, and the reasons."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Measure:
    """A metric and how it is run.

    Attributes:
        name: Its class in Quantus.
        options: Arguments of the class; those that are not here have the default of Quantus.
        direction: "higher" or "lower" where the one that Quantus states is wrong; else empty.
        scope: "each": the images in one batch; "alone": one image at a time; "all": one value for all images; "few": it
            explains again, so on few images only.
        needs_truth: Whether it compares with the mask of the object.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    direction: str = ""
    scope: str = "each"
    needs_truth: bool = False


def measures(side: int, classes: int) -> list[Measure]:
    """All metrics that are run, for views of this side. Steps are larger and samples fewer than the defaults of Quantus."""
    step, patch, few = side * side // 16, side // 16, {"nr_samples": 2}
    imputed = partial(impute_pixels, count=side * side)
    return [
        Measure("FaithfulnessCorrelation", {"nr_runs": 40, "return_aggregate": False}),
        Measure("FaithfulnessEstimate", {"features_in_step": step}),
        Measure("PixelFlipping", {"features_in_step": step}),
        Measure("RegionPerturbation", {"patch_size": patch, "regions_evaluation": 40}, direction="higher"),
        Measure("MonotonicityCorrelation", {"features_in_step": 4 * step, "nr_samples": 5}),
        Measure("Selectivity", {"patch_size": 2 * patch}),
        Measure("SensitivityN", {"features_in_step": step}, scope="all"),
        Measure("IROF", {"return_aggregate": False, "perturb_func": replace_masked}),
        Measure("ROAD", {"percentages": [30, 90, 150], "perturb_func": imputed}, scope="alone"),
        Measure("Sufficiency"),
        Measure("PointingGame", needs_truth=True),
        Measure("TopKIntersection", needs_truth=True),
        Measure("RelevanceMassAccuracy", needs_truth=True),
        Measure("RelevanceRankAccuracy", needs_truth=True),
        Measure("AttributionLocalisation", needs_truth=True),
        Measure("AUC", needs_truth=True),
        Measure("Sparseness"),
        Measure("Complexity"),
        Measure("EffectiveComplexity"),
        Measure("LocalLipschitzEstimate", few, scope="few"),
        Measure("MaxSensitivity", few, scope="few"),
        Measure("AvgSensitivity", few, scope="few"),
        Measure("RelativeInputStability", few, scope="few"),
        Measure("RelativeOutputStability", few, scope="few"),
        Measure("RelativeRepresentationStability", few, scope="few"),
        Measure("Continuity", {"nr_steps": 4}, scope="few"),
        Measure("MPRT", scope="few"),
        Measure("EfficientMPRT", scope="few"),
        Measure("RandomLogit", {"num_classes": classes}, scope="few"),
    ]


#: Metrics that are not run, and why (Quantus 0.6.0).
LEFT_OUT = {
    "Monotonicity": "fills the baseline with the baseline, so that predictions never change: 1 for every map",
    "Infidelity": "compares sums of the map with changes of the output, and these maps are not in its units",
    "NonSensitivity": "one model call for each channel of each pixel (49,152 for a scene); larger steps raise an error",
    "Completeness": "compares floating-point sums with ==, of maps that it has normalised: 0 for every map",
    "InputInvariance": "moves the bias of the first convolution by one value, which zero padding makes wrong at the edges",
    "SmoothMPRT": "explains with quantus.explain whatever explain_func is given",
    "Consistency": "compares images with the same top 5 pixels and signs, of which there are none: 0 for every map",
    "Focus": "needs mosaics of four images, which neither network was trained on",
}


def impute_pixels(arr: Any, indices: Any, count: int, **options: Any) -> Any:
    """ROAD's imputation, for maps with one channel: Quantus passes indices into all channels, and expects pixels.

    A third as many pixels as indices, so that 30 percent of Quantus are 10 percent of the pixels.
    """
    from quantus.functions.perturb_func import noisy_linear_imputation

    pixels = list(dict.fromkeys((np.asarray(indices) % count).tolist()))
    return noisy_linear_imputation(arr, np.array(pixels[: len(indices) // 3]), **options)


def replace_masked(arr: Any, mask: Any, **options: Any) -> Any:
    """IROF's replacement of a segment, in all channels: Quantus passes a mask with one, and refuses it."""
    from quantus.functions.perturb_func import baseline_replacement_by_mask

    return baseline_replacement_by_mask(arr, np.broadcast_to(mask, arr.shape), **options)
