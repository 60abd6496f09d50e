"""The bundled dual encoder, its two files alone: it fits captions to unseen scenes, and is small and deterministic."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime

import becausal.models.bundled
from becausal.scenes import LABELS, NOTHING, Scene, make_scene

FOLDER = Path(becausal.models.bundled.__file__).parent

#: No training has seen a seed from here on; see training/dual_encoder.py.
FIRST_SEED = 190_000_000

EMPTY = LABELS.index(NOTHING)
PROMPTS = (*(f"a photo of {'an' if label[0] in 'aeiou' else 'a'} {label}" for label in LABELS[:EMPTY]), "an empty scene")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "grey", "white")


@cache
def session(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(FOLDER / f"clip_{name}.onnx"), options, providers=["CPUExecutionProvider"])


@cache
def about() -> dict[str, str]:
    return session("text").get_modelmeta().custom_metadata_map


@cache
def scenes() -> tuple[Scene, ...]:
    return tuple(make_scene(FIRST_SEED + k, label=LABELS[k % len(LABELS)], cover=(0.1, 0.4)) for k in range(40))


def embed_images(images) -> np.ndarray:
    scaled = np.stack(images).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(127.5) - np.float32(1)
    return session("image").run(["embedding"], {"input": np.ascontiguousarray(scaled)})[0]


def embed_texts(texts) -> np.ndarray:
    known = json.loads(about()["vocabulary"])
    rows = np.zeros((len(texts), session("text").get_inputs()[0].shape[1]), np.int64)
    for row, text in zip(rows, texts, strict=True):
        words = [known.index(word) if word in known[2:] else 1 for word in re.findall("[a-z]+", text.lower())]
        row[: len(words)] = words
    return session("text").run(["embedding"], {"words": rows})[0]


def choose(images, texts) -> np.ndarray:
    """The number of the text that fits each image best."""
    return np.argmax(embed_images(images) @ embed_texts(texts).T, axis=1)


def test_it_finds_the_label_of_unseen_scenes_among_thirteen_captions():
    truth = np.array([scene.label_index for scene in scenes()])
    assert (choose([scene.image for scene in scenes()], PROMPTS) == truth).mean() >= 0.85


def test_an_image_whose_object_is_masked_is_an_empty_scene():
    objects = [scene for scene in scenes() if scene.label != NOTHING]
    masked = [np.where(scene.visible[:, :, None], np.uint8(128), scene.image) for scene in objects]
    assert (choose(masked, PROMPTS) == EMPTY).mean() >= 0.6
    alone = [np.where(scene.visible[:, :, None], scene.image, np.uint8(128)) for scene in objects]
    assert (choose(alone, PROMPTS) == [scene.label_index for scene in objects]).mean() >= 0.85
    flat = [np.full((128, 128, 3), level, np.uint8) for level in (0, 128, 255)]
    assert (choose(flat, PROMPTS) == EMPTY).all()


def test_a_caption_tells_colours_apart():
    # Whatever the colour of a mug is: the text that fits it must change when its channels are exchanged.
    mugs = [make_scene(FIRST_SEED + k, label="mug", occluder="none") for k in range(12)]
    texts = [f"a {colour} mug" for colour in COLOURS]
    found = choose([mug.image for mug in mugs], texts)
    turned = [np.where(mug.visible[:, :, None], np.roll(mug.image, 1, axis=2), mug.image) for mug in mugs]
    vivid = [
        k for k, colour in enumerate(found) if COLOURS[colour] in ("red", "orange", "yellow", "green", "blue", "purple")
    ]
    changed = choose(turned, texts)[vivid] != found[vivid]
    assert len(vivid) >= 4
    assert changed.mean() >= 0.6


def test_the_vocabulary_has_padding_an_unknown_word_and_the_words_of_all_labels():
    known = json.loads(about()["vocabulary"])
    assert known[0] == ""
    assert len(known) == len(set(known))
    assert all(re.fullmatch("[a-z]+", word) for word in known[2:])
    needed = " ".join([*PROMPTS, *COLOURS, "a red mug behind stones in front of bricks", "no object"]).split()
    assert set(needed) <= set(known[2:])
    assert 1 < float(about()["scale"]) <= 100


def test_unknown_words_change_little():
    plain, spoken = embed_texts(["a photo of a mug"]), embed_texts(["a splendid photo of a mug"])
    assert 0.9 < float((plain * spoken).sum()) < 1


def test_embeddings_are_unit_vectors_and_do_not_depend_on_the_batch():
    images, texts = [scene.image for scene in scenes()[:5]], PROMPTS[:5]
    for embed, given in ((embed_images, images), (embed_texts, texts)):
        together = embed(given)
        assert together.shape == (5, 64)
        assert together.dtype == np.float32
        assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
        assert np.array_equal(together, embed(given))
        assert np.allclose(together, np.concatenate([embed([one]) for one in given]), atol=1e-5)


def test_both_files_are_small_and_say_their_licence():
    assert sum((FOLDER / f"clip_{name}.onnx").stat().st_size for name in ("image", "text")) <= 1_200_000
    for name in ("image", "text"):
        assert session(name).get_modelmeta().custom_metadata_map["license"] == "Apache-2.0"
