"""CLIP and SigLIP models of transformers: small ones, saved here with a tokenizer and a processor, and read again."""

import json
import shutil
import string

import numpy as np
import pytest
from libraries import need
from PIL import Image

from becausal.core.contracts import Geometry
from becausal.core.errors import BecausalError, ModelError, NetworkError
from becausal.images.loading import load_image, make_view
from becausal.interfaces.cli.app import main
from becausal.models import load_model

need("torch", "transformers")
PROMPTS = ("a cat", "a dog", "a red bus", "x")
LETTERS = [*string.ascii_lowercase, ","]
TOWER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
IMAGES = {"image_size": 32, "patch_size": 8}
PROCESSOR = {
    "do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3, "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7],
}  # fmt: skip


def save(folder, model, tokenizer, **processor):
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | processor))
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A CLIP model that reads letters."""
    import torch
    import transformers

    torch.manual_seed(0)
    words = ["<|startoftext|>", "<|endoftext|>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    texts = {
        "vocab_size": len(words),
        "max_position_embeddings": 12,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    config = transformers.CLIPConfig(text_config=TOWER | texts, vision_config=TOWER | IMAGES, projection_dim=12)
    tokenizer = transformers.CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[])
    sizes = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
    folder = tmp_path_factory.mktemp("clip")
    return save(folder, transformers.CLIPModel(config), tokenizer, image_processor_type="CLIPImageProcessor", **sizes)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    """A SigLIP model that reads letters."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    words = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *string.ascii_lowercase])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_input_names=["input_ids"]
    )
    texts = {
        "vocab_size": len(words),
        "max_position_embeddings": 12,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    model = transformers.SiglipModel(transformers.SiglipConfig(text_config=TOWER | texts, vision_config=TOWER | IMAGES))
    torch.nn.init.constant_(model.logit_scale, 3.0)
    torch.nn.init.constant_(model.logit_bias, -2.0)
    folder = tmp_path_factory.mktemp("siglip")
    sizes = {"size": {"height": 32, "width": 32}}
    return save(folder, model, tokenizer, image_processor_type="SiglipImageProcessor", **sizes)


def photo(h=47, w=60):
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize((w, h)))


def ask_the_library(folder, texts):
    """The logits of the photo, (texts,), and its embedding and theirs, by the library alone."""
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    # As in the library's own examples: texts for SigLIP are padded to the length of its training.
    padding = {"padding": "max_length", "max_length": 12} if "siglip" in str(folder) else {"padding": True}
    words = transformers.AutoTokenizer.from_pretrained(folder)(list(texts), return_tensors="pt", **padding)
    image = transformers.AutoImageProcessor.from_pretrained(folder)(Image.fromarray(photo()), return_tensors="pt")
    with torch.no_grad():
        found = model(**words, pixel_values=image["pixel_values"])
    return found.logits_per_image[0], found.image_embeds[0].numpy(), found.text_embeds.numpy()


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_probabilities_are_those_of_the_library(name, request):
    folder = request.getfixturevalue(name)
    model = load_model(f"clip:{folder}", labels=PROMPTS, threads=1)
    info = model.info
    assert (info.kind, info.output, info.labels) == ("clip", "probabilities", PROMPTS)
    assert info.geometry == Geometry((32, 32), 36 if name == "clip" else "squash", "bicubic")
    assert len(info.sha256) == 64
    logits, _, _ = ask_the_library(folder, PROMPTS)
    found = model.classify(make_view(load_image(photo()), info.geometry).pixels[None])[0]
    assert np.allclose(found, logits.softmax(0), atol=2e-3)
    assert found.max() - found.min() > 0.05  # else there would be nothing to compare


def test_weights_in_half_precision_are_used_in_full(clip, tmp_path):
    import transformers

    module, models = transformers.CLIPModel.from_pretrained(clip), []
    for name, convert in (("half", module.half), ("full", module.float)):
        shutil.copytree(clip, tmp_path / name)
        convert().save_pretrained(tmp_path / name)
        models.append(load_model(f"clip:{tmp_path}/{name}", labels=PROMPTS, threads=1))
    pixels = make_view(load_image(photo()), models[0].info.geometry).pixels[None]
    assert np.allclose(models[0].classify(pixels), models[1].classify(pixels), atol=1e-6)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_one_prompt_is_compared_with_an_empty_image(name, request):
    folder = request.getfixturevalue(name)
    _, image, texts = ask_the_library(folder, PROMPTS)
    prompt = int(np.argmax(texts @ image))
    model = load_model(f"clip:{folder}", text=PROMPTS[prompt], threads=1)
    view = make_view(load_image(photo()), model.info.geometry).pixels[None]
    (note,) = model.info.notes
    grey = float(note.split()[-1])  # of the empty image
    assert model.classify(view)[0, 0] == pytest.approx(max(texts[prompt] @ image - max(grey, 0.0), 0.0), abs=2e-3)
    assert model.classify(np.full_like(view, 128))[0, 0] == pytest.approx(0.0, abs=1e-6)


def test_a_prompt_alone_is_read_as_among_others(clip, siglip):
    """Whatever the padding."""
    for folder in (clip, siglip):
        models = [load_model(f"clip:{folder}", labels=labels) for labels in (["x", "a cat"], ["x", "a cat", "a red bus"])]
        found = [model.classify(make_view(load_image(photo()), model.info.geometry).pixels[None])[0] for model in models]
        assert found[0][0] / found[0][1] == pytest.approx(found[1][0] / found[1][1], rel=1e-4)


def test_the_image_encoder_alone_compares_images(clip, tmp_path):
    import torch
    import transformers

    Image.fromarray(photo()).save(tmp_path / "photo.png")
    model = load_model(f"embed:clip:{clip}", like=tmp_path / "photo.png")
    view = make_view(load_image(photo()), model.info.geometry).pixels[None]
    module = transformers.CLIPModel.from_pretrained(clip).eval()
    grey = (torch.full((1, 3, 32, 32), 128 / 255) - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / torch.tensor(
        [0.5, 0.6, 0.7]
    )[:, None, None]
    with torch.no_grad():
        empty = module.get_image_features(pixel_values=grey).pooler_output[0].numpy()
    _, image, _ = ask_the_library(clip, PROMPTS)
    like = float(image @ empty / np.linalg.norm(empty))
    assert model.classify(view)[0, 0] == pytest.approx(1.0 - max(like, 0.0), abs=5e-3)
    assert model.info.spec == f"embed:clip:{clip}"


def test_what_is_saved_is_verified_from_anywhere(clip, tmp_path, monkeypatch, capsys, without_figures):
    monkeypatch.chdir(clip.parent)
    Image.fromarray(photo()).save(tmp_path / "photo.png")
    out = tmp_path / "out"
    arguments = ["--model", f"clip:{clip.name}", "--labels", "a cat,a dog,a red bus", "--max-calls", "400"]
    assert main(["explain", str(tmp_path / "photo.png"), *arguments, "--out", str(out)]) == 0
    record = json.loads((out / "photo/explanation.json").read_text())
    assert record["origin"]["model"] == f"clip:{clip}"
    assert record["origin"]["loading"] == {"labels": ["a cat", "a dog", "a red bus"]}
    assert main(["verify", str(out / "photo"), "--model", f"clip:{clip.name}"]) == 0
    capsys.readouterr()
    assert main(["verify", str(out / "photo")]) == 2  # it would run code
    assert "give the model with --model, or add --trust" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["verify", str(out / "photo"), "--trust"]) == 0


@pytest.mark.smoke
def test_the_hub_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        NetworkError, match=r"^clip:nobody/nothing-like-this is not cached .* give the folder, or set HF_HOME"
    ):
        load_model("clip:nobody/nothing-like-this", text="a cat")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError, match="HF_HUB_OFFLINE is set"):
        load_model("clip:nobody/nothing-like-this", text="a cat")


@pytest.mark.parametrize("options", [{"text": "a very long prompt"}, {"labels": ["a cat", "a very long prompt"]}])
def test_a_prompt_that_is_too_long_is_not_cut(options, clip, siglip, capfd):
    for folder, tokens in ((clip, 17), (siglip, 19)):
        message = f"the prompt 'a very long prompt' has {tokens} tokens, and the model reads 12 at most: shorten it"
        with pytest.raises(BecausalError, match=message):
            load_model(f"clip:{folder}", **options)
    assert capfd.readouterr() == ("", "")


def test_folders_that_are_something_else(clip, tmp_path):
    import transformers

    folder = tmp_path / "vit"
    config = transformers.ViTConfig(**TOWER, **IMAGES)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    with pytest.raises(ModelError, match="is ViTModel, which cannot be used here: expected CLIP, SigLIP"):
        load_model(f"clip:{folder}", text="a cat")
    free = tmp_path / "free"  # images of any size, as rows of patches
    transformers.Siglip2Model(transformers.Siglip2Config(text_config=TOWER, vision_config=TOWER)).save_pretrained(free)
    with pytest.raises(
        ModelError, match="is Siglip2Model, which cannot be used here: expected CLIP, SigLIP, or SigLIP 2 with"
    ):
        load_model(f"clip:{free}", text="a cat")
    half = tmp_path / "half"  # its images have weights, its texts would get random ones
    model = transformers.CLIPModel.from_pretrained(clip)
    left = {name: value for name, value in model.state_dict().items() if not name.startswith("text_")}
    model.save_pretrained(half, state_dict=left)
    with pytest.raises(ModelError, match=r"no weights for text_model.*: it is only a part of a model of images and texts"):
        load_model(f"clip:{half}", text="a cat")
    bare = tmp_path / "bare"
    model.save_pretrained(bare)
    with pytest.raises(ModelError, match=f"^clip:{bare} cannot be loaded: "):
        load_model(f"clip:{bare}", text="a cat")
    broken = tmp_path / "broken"
    shutil.copytree(clip, broken)
    (broken / "model.safetensors").write_bytes((clip / "model.safetensors").read_bytes()[:3000])
    for kind in ("clip", "hf"):
        with pytest.raises(ModelError, match=f"^{kind}:{broken} cannot be loaded: "):
            load_model(f"{kind}:{broken}", **{"clip": {"text": "a cat"}, "hf": {}}[kind])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="empty cannot be loaded: "):
        load_model(f"clip:{tmp_path}/empty", text="a cat")
