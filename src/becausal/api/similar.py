"""Why are two images alike: what of each of them makes it similar to the other one."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from becausal.api import Explanation, Failure, Request, Status, explain_many
from becausal.core.errors import BecausalError, TargetError
from becausal.core.files import safe_name, write_files
from becausal.images.loading import load_image
from becausal.models import Loading, open_embedder
from becausal.models.similarity import compare, compare_with_image, embed_image
from becausal.render import figures


@final
@dataclass(frozen=True, eq=False)
class Pair:
    """Two images, and what of each makes it similar to the other one.

    Attributes:
        explanations: Of the first image and of the second; only the first one where Ctrl-C ended its search, or the second
            failed.
        similarity: The cosine similarity of the two.
        empty: What is left of it where all of the first image is masked, or all of the second.
        error: Why the second image could not be explained; None where nothing failed.
    """

    explanations: tuple[Explanation, ...]
    similarity: float
    empty: tuple[float, float]
    error: BecausalError | None = None

    def plot(self) -> Any:
        """Both images side by side with their sets, as a matplotlib figure."""
        names = " and ".join(found.origin.image for found in self.explanations)
        return figures.plot_together(self.explanations, f"{names}: cosine similarity {self.similarity:.3f}")

    def files(self) -> dict[str, bytes]:
        """The file with both images, by name."""
        return {"similar.png": figures.png_bytes(self.plot())}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write each explanation into a folder of its own, with the name of its image, and both side by side."""
        names = [safe_name(Path(found.origin.image).stem) for found in self.explanations]
        for number, (name, found) in enumerate(zip(names, self.explanations, strict=True)):
            is_taken = number > 0 and name.casefold() == names[0].casefold()
            found.save(Path(folder) / (f"{name}-2" if is_taken else name))
        return write_files(Path(folder), self.files())


def similar(
    first: Any,
    second: Any,
    model: Any,
    *,
    above: float | None = None,
    request: Request | None = None,
    loading: Loading | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Pair:
    """Explain why two images are alike: what of the first makes it similar to the second, and the other way round.

    Args:
        first: A file's path, a PIL image or an array.
        second: The same.
        model: A network of embeddings, (n, numbers): a spec, e.g. "embed:net.onnx" or "embed:hf:facebook/dinov2-small", a
            torch module, a pipeline of transformers, a model of Keras, or a function.
        above: The lowest cosine similarity that counts as similar, e.g. that of the system which uses the network. Default:
            half of the similarity, not counting what an empty image has, or the share that `request.confidence` states.
        request: What is asked of both images.
        loading: How the model is loaded.
        progress: Called with a `Status` after each batch.

    Returns:
        Both explanations, and the similarities. Each verifies with `as_embedder(model, like=...)`, the other image.

    Raises:
        TargetError: The images are no more similar than one of them is to an empty image, or less than `above`.
        BecausalError: An image or the model cannot be used, see `becausal.core.errors`.
    """
    loading = loading or Loading()
    loading = loading if above is None else replace(loading, threshold=above)
    network, images = open_embedder(model, loading), [load_image(first), load_image(second)]
    (one, blank_one), (other, blank_other) = (embed_image(network, image) for image in images)
    similarity = float(compare(one, other)[0, 0])
    empty = float((blank_other @ other.T)[0, 0]), float((blank_one @ one.T)[0, 0])
    for (image, like), least in zip((images, images[::-1]), empty, strict=True):
        if not similarity > max(least, 0.0):
            what = f"{image.name} is no more similar to {like.name} ({similarity:.3f}) than an empty image ({least:.3f})"
            raise TargetError(f"{what}: there is nothing to explain")
    found: list[Explanation] = []
    # Both are compared before the first search: a threshold that does not fit is refused at once.
    for image, classifier in zip(images, [compare_with_image(network, like, loading) for like in images[::-1]], strict=True):
        try:
            result = next(explain_many([image], classifier, request=request, progress=progress))
        except BecausalError as error:
            result = Failure(image.name, error)
        if isinstance(result, Failure):
            if not found:
                raise result.error
            return Pair(tuple(found), similarity, empty, result.error)  # what the first one has cost is not lost
        found.append(result)
        if result.stopped_by == "interrupt":
            break
    return Pair(tuple(found), similarity, empty)
