"""HTML of the page before and during a search."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Pixels, Visible
from becausal.interfaces.serve.images import Upload, array_uri, thumbnail_uri
from becausal.interfaces.serve.rendering import render
from becausal.render.painting import paint_explanation, paint_map
from becausal.render.sheets import Sheet, as_rgb, choose_scale, value_range

MAX_SNAPSHOT_SIDE = 512  # pixels: images of a running search are sent several times a second
ACTIVITIES = {
    "search": "masking parts of the image",
    "extract": "selecting the first pixels of the ranking",
    "minimise": "removing pixels that are not needed",
    "backgrounds": "evaluating on random backgrounds",
    "verify": "verifying the result",
}


def render_image(family: str, examples: Sequence[Upload], upload: Upload | None, uri: str, *, model: str) -> str:
    """The current image, the controls to choose another, and the examples. model: the one the labels are from."""
    return render(
        "image",
        model=model,
        name=upload.name if upload is not None else None,
        uri=uri,
        examples=[
            {
                "key": f"{family}/{number}",
                "name": example.name.removesuffix(".png"),
                "uri": thumbnail_uri(example),
                "chosen": upload is example,
            }
            for number, example in enumerate(examples)
        ],
    )


@dataclass(frozen=True)
class SearchSnapshot:
    """A running search: the view, the smallest sufficient set so far, and the preliminary map."""

    view: Pixels
    visible: Visible
    depth: NDArray[np.float32]

    def image_uris(self) -> dict[str, str]:
        """The explanation and the map so far as data URIs, of large views every second or third pixel."""
        step = -(-max(self.visible.shape) // MAX_SNAPSHOT_SIDE)
        visible, depth = self.visible[::step, ::step], self.depth[::step, ::step]
        h, w = visible.shape
        image = as_rgb(self.view[::step, ::step], *value_range(self.view))
        heat = depth.astype(np.float64) / max(float(self.depth.max()), 1e-12)
        scale = min(2, choose_scale((h, w)))
        sheet = Sheet(image, image, visible, heat, np.ones((h, w), bool), (), scale)
        return {
            "explanation": array_uri(paint_explanation(sheet)),
            "map": array_uri(paint_map(sheet)),
        }


def render_running(
    snapshot: SearchSnapshot | None, *, calls: int, max_calls: int | None, stage: str, is_stopping: bool
) -> str:
    """The explanation while it shrinks."""
    return render(
        "running",
        size=float(snapshot.visible.mean()) if snapshot is not None else 1.0,
        calls=calls,
        call_share=calls / max_calls if max_calls else None,
        activity="finishing with the best result so far" if is_stopping else ACTIVITIES.get(stage, stage),
        images=snapshot.image_uris() if snapshot is not None else None,
    )


def render_comparing(methods: tuple[str, str], *, calls: int, is_stopping: bool) -> str:
    """The state while two methods run, one after the other."""
    return render("comparing", methods=methods, calls=calls, activity="stopping" if is_stopping else "calling the model")
