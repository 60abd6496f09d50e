"""Models of transformers as networks of embeddings: small ones, saved here and read again."""

import json

import numpy as np
import pytest
from libraries import need
from PIL import Image

from becausal.core.errors import BecausalError, ModelError, NetworkError
from becausal.images.loading import load_image, make_view
from becausal.models import as_embedder, load_model
from becausal.models.similarity import unit_rows

need("torch", "transformers")
TOWER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
IMAGES = {"image_size": 32, "patch_size": 8}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 2,
    "rescale_factor": 1 / 255, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7],
    "size": {"height": 32, "width": 32},
}  # fmt: skip


def make(kind, **further):
    """A model with random weights, so large that images differ."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = {
        "ViTModel": lambda: transformers.ViTConfig(**TOWER, **IMAGES),
        "ViTForImageClassification": lambda: transformers.ViTConfig(**TOWER, **IMAGES, num_labels=5),
        "Dinov2Model": lambda: transformers.Dinov2Config(
            **{**TOWER, "mlp_ratio": 2}, image_size=32, patch_size=8, use_swiglu_ffn=False
        ),
        "ResNetModel": lambda: transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
        ),
        "CLIPModel": lambda: transformers.CLIPConfig(
            text_config=TOWER | {"vocab_size": 20, "max_position_embeddings": 8},
            vision_config=TOWER | IMAGES,
            projection_dim=12,
        ),
        "BertModel": lambda: transformers.BertConfig(**TOWER, vocab_size=20),
    }[kind]()
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(8 if weights.ndim > 1 else 1)
    return model


def save(folder, model):
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{name}.png" for name in "ab"]
    for path in paths:
        Image.fromarray(np.repeat(np.repeat(rng.integers(0, 256, (4, 4, 3)).astype(np.uint8), 10, 0), 12, 1)).save(path)
    return paths


def expect(network, images, embed):
    """The network's scores are those of the definition, from embeddings of its own views."""
    import torch

    views = [make_view(load_image(path), network.info.geometry).pixels for path in images]
    mixed = ((views[0].astype(int) + 2 * views[1]) // 3).astype(np.uint8)
    batch = np.stack([*views, mixed, np.full_like(views[0], 128)])
    scaled = (batch / 255 - PROCESSOR["image_mean"]) / PROCESSOR["image_std"]
    with torch.inference_mode():
        rows = unit_rows(embed(torch.tensor(scaled, dtype=torch.float32).permute(0, 3, 1, 2)).numpy())
    cosines = rows @ rows[1]
    assert np.allclose(network.classify(batch)[:, 0], np.clip(cosines - max(0.0, cosines[3]), 0, 1), atol=1e-5)
    assert network.classify(batch[1:2])[0, 0] > 0.05


@pytest.mark.parametrize(
    ("kind", "embed"),
    [
        ("ViTModel", lambda model, x: model(pixel_values=x).pooler_output),
        ("Dinov2Model", lambda model, x: model(pixel_values=x).last_hidden_state[:, 0]),
        ("ResNetModel", lambda model, x: model(pixel_values=x).last_hidden_state.mean(dim=(2, 3))),
        ("CLIPModel", lambda model, x: model.visual_projection(model.vision_model(pixel_values=x).pooler_output)),
    ],
)
def test_the_embedding_is_the_one_that_the_library_defines(kind, embed, images, tmp_path):
    model = make(kind)
    folder = save(tmp_path / "net", model)
    network = load_model(f"embed:hf:{folder}", like=images[1])
    expect(network, images, lambda batch: embed(model, batch))
    assert network.info.spec == f"embed:hf:{folder}"
    assert network.info.sha256 == load_model(f"embed:hf:{folder}", like=images[0]).info.sha256
    assert not any("pooler" in note for note in network.info.notes)


@pytest.mark.smoke
def test_a_pooler_that_has_no_weights_is_not_used(images, tmp_path):
    """The library fills it with random numbers, other ones each time."""
    model = make("ViTForImageClassification")
    folder = save(tmp_path / "net", model)
    one, other = (load_model(f"embed:hf:{folder}", like=images[1]) for _ in range(2))
    expect(one, images, lambda batch: model.vit(pixel_values=batch).last_hidden_state[:, 0])
    expect(other, images, lambda batch: model.vit(pixel_values=batch).last_hidden_state[:, 0])
    note = "the files have no weights for a pooler, so the embedding is the output for the first token"
    assert note in one.info.notes


def test_modules_and_pipelines_in_memory(images):
    import transformers

    model = make("Dinov2Model")
    processor = transformers.ViTImageProcessorPil(**{key: value for key, value in PROCESSOR.items() if "type" not in key})
    pipeline = transformers.pipeline("image-feature-extraction", model=model, image_processor=processor)
    expect(as_embedder(pipeline, like=images[1]), images, lambda batch: model(pixel_values=batch).pooler_output)
    own = as_embedder(model, like=images[1], preprocess="unit")
    assert own.info.geometry.grid == (32, 32)
    assert own.classify(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 1)


@pytest.mark.parametrize(
    ("make_folder", "error", "expected"),
    [
        (lambda folder: save(folder, make("BertModel")), ModelError, "cannot"),
        (lambda folder: folder.mkdir(), ModelError, "cannot be loaded"),
        (lambda folder: None, NetworkError, "HF_HUB_OFFLINE"),
    ],
)
def test_what_has_no_embeddings_of_images_is_refused(make_folder, error, expected, images, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_folder(tmp_path / "net")
    with pytest.raises(BecausalError, match=expected) as caught:
        load_model("embed:hf:nobody/nothing" if error is NetworkError else f"embed:hf:{tmp_path / 'net'}", like=images[0])
    assert isinstance(caught.value, error)
    assert "\n" not in str(caught.value)
