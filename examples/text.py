"""Explain why a text fits an image, with two encoders of your own.

    python examples/text.py

Here they are small functions: colours for the images, names of colours for the texts. In their place, put any two networks
that were trained together. CLIP and SigLIP models of transformers need no code: `becausal explain --model clip:FOLDER`.
"""

import numpy as np

import becausal
from becausal.models import as_matcher

COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 200), "grey": (120, 120, 120)}


def embed_images(images: np.ndarray) -> np.ndarray:
    """For each colour, the share of the pixels that are close to it; (n, h, w, 3) uint8 -> (n, 4)."""
    distances = [np.abs(images - np.array(colour)).max(axis=-1) for colour in COLOURS.values()]
    return np.stack([(distance < 60).mean(axis=(1, 2)) for distance in distances], axis=1)


def embed_texts(texts: list[str]) -> np.ndarray:
    """For each colour, whether the text names it; (n, 4)."""
    return np.array([[float(colour in text) for colour in COLOURS] for text in texts])


def main() -> None:
    image = np.full((64, 64, 3), COLOURS["grey"], np.uint8)
    image[8:24, 8:24], image[36:60, 36:60] = COLOURS["red"], COLOURS["blue"]

    prompts = ["a red square", "a green square", "a blue square"]
    best = becausal.explain(image, as_matcher(embed_images, embed_texts, labels=prompts, scale=10), fills=0)
    print(f"best of {len(prompts)}: {best.label} ({best.confidence:.2f})")

    for prompt, place in (("a red square", np.s_[8:24, 8:24]), ("a blue square", np.s_[36:60, 36:60])):
        found = becausal.explain(image, as_matcher(embed_images, embed_texts, text=prompt), fills=0)
        core = found.levels[0]
        inside = np.count_nonzero(core.visible[place]) / core.pixels
        print(f"{prompt}: similarity {found.confidence:.2f}; core: {core.pixels} pixels, {inside:.0%} of them on the square")
        assert inside == 1.0
    assert best.label == "a blue square"


if __name__ == "__main__":
    main()
