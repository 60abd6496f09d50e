"""Why are two images similar? A network that compares colours, and what it takes for a match.

    python examples/similarity.py

`embed` stands for your own network: it turns images into embeddings. It knows nothing but colours, so that a bus and a clock
on the same meadow are a match. The explanation tells: what keeps the match is the meadow.
"""

import numpy as np
from numpy.typing import NDArray

import becausal
from becausal.scenes import make_scene

MATCH = 0.7  # the cosine similarity from which on your system calls two images a match


def embed(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(n, h, w, 3) pixels to (n, 64): which share of an image has each of 64 colours."""
    colours = (images // 64).astype(int) @ np.array([16, 4, 1])
    return np.stack([(colours == i).mean(axis=(1, 2)) for i in range(64)], axis=1)


def main() -> None:
    bus, clock = make_scene(108), make_scene(111)
    pair = becausal.similar(bus.image, clock.image, embed, above=MATCH, request=becausal.Request(smallest=True, grain=8))

    print(f"a {bus.label} and a {clock.label}: cosine similarity {pair.similarity:.2f}")
    for scene, explanation in zip((bus, clock), pair.explanations, strict=True):
        shown = np.where(explanation.visible[..., None], scene.image, 128).astype(np.uint8)
        other = clock.image if scene is bus else bus.image
        one, two = embed(np.stack([shown, other]))
        kept = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        on_object = np.count_nonzero(explanation.visible & scene.visible) / explanation.pixels
        print(f"{scene.label}: {explanation.size:.0%} of the pixels keep {kept:.2f}; {on_object:.0%} of them on the object")
        assert kept >= MATCH
        assert on_object < 0.2


if __name__ == "__main__":
    main()
