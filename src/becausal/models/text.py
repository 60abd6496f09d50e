"""Why does this text fit the image? Models of images and texts: `clip:NAME-OR-FOLDER`, `bundled:clip`, any two encoders.

One network makes embeddings of images, another one embeddings of texts, of the same length. Prompts are embedded once, when
the model is loaded. Several prompts exclude each other: softmax over their cosine similarities with the image, times a
scale, as in zero-shot classification. One prompt has its own similarity, above that of an empty image: `similarity`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, ModelError, OptionError
from becausal.core.text import one_line
from becausal.models.asked import AskedNetwork
from becausal.models.hubs import as_embedder_module, find_files, hash_files, loading_quietly, read_huggingface
from becausal.models.loading import ModelSettings
from becausal.models.onnx_file import open_session
from becausal.models.outputs import softmax
from becausal.models.similarity import compare, compare_with, embed_empty, unit_rows
from becausal.models.torch_module import import_beside_torch, import_torch, wrap
from becausal.models.user_code import stdout_to_stderr

SCALE = 100.0  # of the cosine similarities before the softmax, as CLIP learnt it
MOST_SCALE = 1_000_000

EmbedTexts = Callable[[list[str]], Any]  # from n texts to their embeddings, (n, d), an array or a torch tensor


def find_prompts(settings: ModelSettings) -> tuple[str, ...]:
    """The prompts that are asked about, one for `text`. Raises OptionError where there are none, or too few."""
    text, labels = settings.loading.text, settings.labels
    if settings.returns is not None:
        raise OptionError("a model of images and texts returns embeddings: remove returns")
    if (text is None) == (labels is None):
        what = "one or the other, not both" if text is not None else "say which"
        raise OptionError(
            f'a model of images and texts compares an image with prompts, {what}: --labels "a photo of a cat,a photo of '
            'a dog", or --text "a red bus"'
        )
    prompts = (text,) if text is not None else labels or ()
    if not all(prompt.strip() for prompt in prompts):
        raise OptionError('a prompt is empty; expected a text such as "a red bus"')
    if text is None and len(set(prompts)) < max(2, len(prompts)):
        raise OptionError(f"labels must be two or more different prompts, not {', '.join(prompts)}; for one, use text")
    if text is None and settings.threshold is not None:
        raise OptionError("threshold is for one prompt, text, and prompts given as labels exclude each other: remove it")
    return prompts


def ask(
    encoder: Classifier, embed: EmbedTexts, settings: ModelSettings, *, scale: float = SCALE, spec: str | None = None
) -> AskedNetwork:
    """An image encoder, asked which prompts fit. Raises OptionError for bad prompts, ModelError for bad embeddings.

    embed: the text encoder. scale: of cosine similarities, before the softmax. spec: of both, None for the encoder's.
    """
    prompts = find_prompts(settings)
    if not 0.0 < scale < MOST_SCALE:
        raise OptionError(f"the scale of cosine similarities is a number above 0 and below {MOST_SCALE:,}, not {scale:g}")
    wanted, image = embed_texts(embed, prompts), embed_empty(encoder)
    if wanted.shape[1] != image.shape[1]:
        numbers = f"{image.shape[1]} numbers for an image, the text encoder {wanted.shape[1]} for a prompt"
        raise ModelError(f"the image encoder returns {numbers}: use two encoders that were trained together")
    loading = settings.loading.record()
    if settings.loading.text is not None:
        return compare_with(encoder, wanted, prompts[0], image, settings.threshold, loading, spec=spec)
    notes = (f"softmax over the prompts, of {scale:g} times their cosine similarities",)
    info = replace(
        encoder.info, output="probabilities", labels=prompts, notes=notes, loading=loading, spec=spec or encoder.info.spec
    )
    return AskedNetwork(encoder, info, lambda raw: softmax(scale * compare(unit_rows(raw), wanted)))


def embed_texts(embed: EmbedTexts, prompts: tuple[str, ...]) -> NDArray[np.float32]:
    """The embeddings of prompts, (n, d), of length 1. Raises ModelError for any error in the encoder."""
    try:
        with stdout_to_stderr():
            found = embed(list(prompts))
        rows = np.asarray(found.detach().cpu().float().numpy() if hasattr(found, "detach") else found)
    except BecausalError:
        raise
    except Exception as error:  # the encoder is the user's code: any error is possible
        message = f"{type(error).__name__}: {one_line(error, 200)}"
        raise ModelError(f"the text encoder cannot embed {', '.join(map(repr, prompts))}: {message}") from error
    if rows.ndim != 2 or len(rows) != len(prompts) or rows.dtype.kind not in "iuf" or not np.isfinite(rows).all():
        expected = f"expected finite numbers, ({len(prompts)}, d)"
        raise ModelError(f"the text encoder returned {rows.dtype} of shape {rows.shape}; {expected}")
    return unit_rows(rows)


def check_length(prompt: str, length: int, limit: int, parts: str) -> None:
    """Raise OptionError where a prompt is longer than what the text encoder reads."""
    if length > limit:
        raise OptionError(f"the prompt {prompt!r} has {length} {parts}, and the model reads {limit} at most: shorten it")


def load(target: str, settings: ModelSettings) -> Classifier:
    """The CLIP or SigLIP model in a folder, or of that name on Hugging Face's hub, with its processor and its tokenizer.

    As a network of embeddings, `embed:clip:…`, its image encoder. Raises NetworkError if it must be downloaded and cannot
    be, ModelError if it is not a model of images and texts.
    """
    if not settings.question:
        find_prompts(settings)
    transformers = import_beside_torch("transformers", "hf", "a model of images and texts")
    spec = settings.name_kind(f"clip:{target}")
    where = find_files(transformers, target, spec)
    with loading_quietly(transformers, spec):
        model, report = transformers.AutoModel.from_pretrained(target, output_loading_info=True, **where)
        if not hasattr(model, "get_text_features") or model.config.model_type == "siglip2":
            advice = "expected CLIP, SigLIP, or SigLIP 2 with images of one size"
            raise ModelError(f"{spec} is {type(model).__name__}, which cannot be used here: {advice}")
        if missing := sorted(report["missing_keys"]):
            raise ModelError(f"{spec} has no weights for {missing[0]}: it is only a part of a model of images and texts")
        processor = transformers.AutoImageProcessor.from_pretrained(target, **where)
        tokenizer = transformers.AutoTokenizer.from_pretrained(target, **where)
    own = replace(read_huggingface(model.config.vision_config, processor), labels=None)
    module = as_embedder_module(model.float())  # the weights may be saved in half precision
    sha256 = hash_files(transformers, target)
    if settings.question:
        return wrap(module, settings, own, spec=spec, kind="clip", sha256=sha256)
    plain = replace(settings, labels=None, threshold=None, returns="raw")
    encoder = wrap(module, plain, own, spec=spec, kind="clip", sha256=sha256)
    return ask(encoder, _make_text_encoder(model, tokenizer), settings, scale=float(model.logit_scale.detach().exp()))


def _make_text_encoder(model: Any, tokenizer: Any) -> EmbedTexts:
    """The text encoder of a model of images and texts."""
    torch = import_torch("a model of images and texts")
    limit = model.config.text_config.max_position_embeddings
    # SigLIP reads the last place, so all texts are as long as in training.
    padding = {"padding": "max_length", "max_length": limit} if model.config.model_type == "siglip" else {"padding": True}

    def embed(texts: list[str]) -> Any:
        for text, tokens in zip(texts, tokenizer(texts, verbose=False)["input_ids"], strict=True):
            check_length(text, len(tokens), limit, "tokens")
        with torch.inference_mode():
            tokens = tokenizer(texts, return_tensors="pt", **padding).to(model.device)
            found = model.get_text_features(**tokens)
            return getattr(found, "pooler_output", found)  # before transformers 5, the embeddings themselves

    return embed


def load_words(path: Path, settings: ModelSettings) -> tuple[EmbedTexts, float, tuple[str, ...]]:
    """A text encoder of whole words in an ONNX file, its scale, and notes on the prompts; the metadata have the vocabulary.

    It reads numbers of words, (n, length): 0 stands for none, 1 for a word that is not in the vocabulary.
    """
    session = open_session(path, settings)
    metadata = session.get_modelmeta().custom_metadata_map
    vocabulary = json.loads(metadata["vocabulary"])
    numbers = {word: i for i, word in enumerate(vocabulary)}
    words, (output, *_) = session.get_inputs()[0], session.get_outputs()
    length = words.shape[1]

    def embed(texts: list[str]) -> NDArray[Any]:
        rows = np.zeros((len(texts), length), np.int64)
        for row, text in zip(rows, texts, strict=True):
            found = [numbers.get(word, 1) for word in re.findall("[a-z]+", text.lower())]
            check_length(text, len(found), length, "words")
            if set(found) <= {1}:
                known = one_line(", ".join(vocabulary[2:]), 300)
                raise OptionError(f"the model knows no word of the prompt {text!r}; it knows {known}")
            row[: len(found)] = found
        return np.asarray(session.run([output.name], {words.name: rows})[0])

    words_of = re.findall(r"[^\W_]+", " ".join(find_prompts(settings)).lower())  # in every script
    unknown = dict.fromkeys(word for word in words_of if word not in numbers)
    notes = (f"words that the model does not know: {', '.join(unknown)}",) if unknown else ()
    return embed, float(metadata["scale"]), notes
