"""Captions of generated scenes, and which captions are true of which image.

The truth about an image is four numbers: its label, the colour of its object, its occluder and its background, as positions
in `LABELS`, `COLOURS`, `OCCLUDERS` and `BACKGROUNDS`. A caption claims some of the four.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from becausal.scenes import BACKGROUNDS, LABELS, NOTHING, OCCLUDERS

LENGTH = 20  # words of a caption; longer ones are cut
PADDING, UNKNOWN = 0, 1  # the first two entries of the vocabulary

#: What a caption may claim of the label beyond `LABELS`: that there is an object. And a part of the truth that is not known.
ANY_OBJECT, OPEN = len(LABELS), -1
UNCLAIMED = -1

COLOURS: tuple[str, ...] = (
    "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "grey", "white",
)  # fmt: skip

#: Words for the labels; the first one is the label itself, the last line is for `ANY_OBJECT`.
NOUNS: tuple[tuple[str, ...], ...] = (
    *({"sailboat": ("sailboat", "boat"), "mug": ("mug", "cup"), "plane": ("plane", "airplane")}.get(label, (label,))
      for label in LABELS),
    ("object", "thing"),
)  # fmt: skip
EMPTY = ("an empty scene", "an empty image", "no object", "nothing")

#: Words for the occluders and the backgrounds; a background without plain words is never claimed.
IN_FRONT: dict[str, tuple[str, ...]] = {
    "none": ("in full view",),
    "black": ("behind a black shape",),
    "flat": ("behind a plain shape",),
    "texture": ("behind a patterned shape",),
    "strips": ("behind bars", "behind a fence"),
    "prop": ("behind another object",),
    "dirt": ("behind dirt", "behind stones"),
}
BEHIND: dict[str, tuple[str, ...]] = {
    "gradient": (),
    "clouds": ("clouds",),
    "horizon": ("a horizon",),
    "hills": ("hills",),
    "wallpaper": ("wallpaper",),
    "tiles": ("tiles",),
    "boards": ("boards", "wood"),
    "bricks": ("bricks", "a brick wall"),
    "lights": ("lights",),
    "blocks": ("blocks",),
}
#: What can be claimed of the label, the colour, the occluder and the background of an object.
VALUES: tuple[tuple[int, ...], ...] = (
    tuple(range(len(LABELS) - 1)), tuple(range(len(COLOURS))), tuple(range(len(OCCLUDERS))),
    tuple(k for k, ground in enumerate(BACKGROUNDS) if BEHIND[ground]),
)  # fmt: skip
OPENINGS = ("", "a photo of ", "an image of ", "a picture of ")

Facts = npt.NDArray[np.int64]  # (n, 4): label, colour, occluder, background; `OPEN` or `UNCLAIMED` where there is none


def phrase(claims: Sequence[int], *, opening: str = "", choose=lambda words: words[0]) -> str:  # type: ignore[no-untyped-def]
    """The caption with these four claims; `choose` picks one of several words for the same."""
    label, colour, occluder, background = claims
    if label == LABELS.index(NOTHING):
        text = choose(EMPTY)
    else:
        text = ("" if colour == UNCLAIMED else f"{COLOURS[colour]} ") + choose(NOUNS[label])
        text = f"{'an' if text[0] in 'aeiou' else 'a'} {text}"
    if occluder != UNCLAIMED:
        text += f" {choose(IN_FRONT[OCCLUDERS[occluder]])}"
    if background != UNCLAIMED:
        text += f" in front of {choose(BEHIND[BACKGROUNDS[background]])}"
    return opening + text


def claim(truth: Sequence[int], hand: random.Random) -> list[int]:
    """Some true claims about an image."""
    label, colour, occluder, background = truth
    empty = label == LABELS.index(NOTHING)
    return [
        ANY_OBJECT if not empty and hand.random() < 0.15 else label,
        colour if not empty and hand.random() < 0.6 else UNCLAIMED,
        occluder if hand.random() < 0.45 else UNCLAIMED,
        background if background != OPEN and BEHIND[BACKGROUNDS[background]] and hand.random() < 0.3 else UNCLAIMED,
    ]


def alter(claims: Sequence[int], hand: random.Random) -> list[int]:
    """The same claims with another value for one of them."""
    empty = claims[0] == LABELS.index(NOTHING)
    part = hand.choice([k for k, value in enumerate(claims) if value != UNCLAIMED])
    changed = list(claims)
    changed[part] = hand.choice([value for value in VALUES[part] if value != claims[part]])
    if part == 0 and not empty and hand.random() < 0.15:
        changed[:2] = LABELS.index(NOTHING), UNCLAIMED
    return changed


def compare(truths: Facts, claims: Facts) -> npt.NDArray[np.int8]:
    """Whether captions are true of images: 1, false: 0, or not known: -1; (images, captions)."""
    held = np.ones((len(truths), len(claims)), np.int8)
    for part in range(truths.shape[1]):
        real, said = truths[:, None, part], claims[None, :, part]
        agrees = real == said
        if part == 0:
            agrees |= (said == ANY_OBJECT) & (real != LABELS.index(NOTHING))
        doubtful = (real == OPEN) & (said != UNCLAIMED)
        held[doubtful & (held == 1)] = -1
        held[~agrees & ~doubtful & (said != UNCLAIMED)] = 0
    return held


def words_of(text: str) -> list[str]:
    """The words of a text: lower case, letters a to z only."""
    return re.findall("[a-z]+", text.lower())


def make_vocabulary() -> list[str]:
    """All words of all captions, after padding and unknown."""
    texts = [*COLOURS, *chain(*NOUNS), *EMPTY, *chain(*IN_FRONT.values(), *BEHIND.values()), *OPENINGS, "a an in front of"]
    return ["", "?", *sorted({word for text in texts for word in words_of(text)})]


def encode(texts: Sequence[str], vocabulary: Sequence[str]) -> npt.NDArray[np.int64]:
    """The numbers of the words of texts, (n, LENGTH), 0 after the end."""
    numbers = {word: k for k, word in enumerate(vocabulary)}
    rows = np.full((len(texts), LENGTH), PADDING, np.int64)
    for row, text in zip(rows, texts, strict=True):
        found = [numbers.get(word, UNKNOWN) for word in words_of(text)][:LENGTH]
        row[: len(found)] = found
    return rows


def draw_captions(truths: Facts, hand: random.Random) -> tuple[list[str], Facts]:
    """Captions for a batch of images, and their claims: one for each label; two true ones and an altered one for each image.

    A tenth of them has a word that the vocabulary does not know, so that such words change little.
    """
    claims = [[label, UNCLAIMED, UNCLAIMED, UNCLAIMED] for label in range(len(LABELS))]
    for truth in truths.tolist():
        one, two = claim(truth, hand), claim(truth, hand)
        claims += [one, two, alter(one, hand)]
    texts = []
    for each in claims:
        texts.append(phrase(each, opening=hand.choice(OPENINGS), choose=hand.choice))
        if hand.random() < 0.1:
            spaced = texts[-1].split()
            spaced.insert(hand.randrange(len(spaced) + 1), "unknownword")
            texts[-1] = " ".join(spaced)
    return texts, np.array(claims, np.int64)


def draw_questions(part: int, hand: random.Random) -> list[str]:
    """For each label, captions that differ in one claim only: one for each of `VALUES[part]`, label by label."""
    texts = []
    for label in VALUES[0]:
        opening, one = hand.choice(OPENINGS), hand.randrange(2)
        for value in VALUES[part]:
            claims = [label, *[UNCLAIMED] * 3]
            claims[part] = value
            texts.append(phrase(claims, opening=opening, choose=lambda words, one=one: words[one % len(words)]))
    return texts
