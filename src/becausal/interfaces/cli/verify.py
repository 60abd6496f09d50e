"""`becausal verify`: check every claim of a saved explanation again."""

import os
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import InputError, ModelError, OutputError
from becausal.core.files import open_regular
from becausal.core.options import option
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import open_console, print_table, write_json
from becausal.models import KINDS, Loading, open_model

if TYPE_CHECKING:
    from becausal.api.explanation import Explanation
    from becausal.core.checks import Verification
    from becausal.core.contracts import Classifier
    from becausal.core.explanation import Origin

PRIVATE = ("header", "token_env", "ca", "cache", "cache_mb")  # endpoint options that are never taken from a record
MOST_BYTES = 2**33  # of the masks that test whether a set is minimal


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Where what was explained is now, and whether its record is trusted."""

    trust: bool = option(False, "Use the model that the saved explanation names, even if that runs code or calls a server.")
    backgrounds: Path | None = option(
        None,
        "The folder that the random backgrounds came from, if the explanation was made with --backgrounds.",
        metavar="DIR",
    )
    image: Path | None = option(
        None, "The image that was explained. Default: the recorded file, if it has the recorded sha256.", metavar="FILE"
    )


@options.expand_options
def verify(
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `becausal explain` wrote for one image.")],
    model: Annotated[
        str | None,
        options.model_option(
            "Model to check the claims with. Default: the model that was explained, if it is bundled, or an ONNX file "
            "that has not changed."
        ),
    ] = None,
    given: Annotated[VerifyOptions, options.group_of(VerifyOptions, options.OWN)],
    as_json: options.AsJson = False,
    loading: options.LoadingOptions,
) -> int:
    """Check every claim of a saved explanation again, with the model, and recompute the rest of its record.

    What was recomputed with the same result is named, and so is what could not be checked. The model and its options are
    those of the saved explanation unless you give others. A saved explanation may come from somebody else, so models that
    run code or call a server are used only with --model or --trust. Exit status: 0 if all claims hold and all that was
    recomputed is the same, 1 if not.

    **Examples**

    - `becausal verify becausal-out/photo`
    - `becausal verify becausal-out/photo --model python:mine.py:predict`
    - `becausal verify becausal-out/photo --model other.onnx --json`
    - `becausal verify becausal-out/photo --backgrounds streets/`
    - `becausal verify photo-from-somebody --image photo.jpg`
    """
    import numpy as np

    from becausal.api import verify as verify_claims
    from becausal.api.explanation import FILES, Explanation
    from becausal.core.checks import Verification
    from becausal.core.regions import cells

    explanation = Explanation.load(folder)
    for stated in (*explanation.levels, *explanation.others):  # a record may state what takes too much memory to check
        if stated.checks.minimal_grain is not None:
            number = cells(stated.visible.shape, stated.checks.minimal_grain)
            size = len(np.unique(number[stated.visible])) * stated.visible.size
            if size > MOST_BYTES:
                raise OutputError(
                    f"checks.minimal_grain is too small to check: it would take {size / 1e9:,.0f} GB of memory"
                )
    classifier = load_again(explanation.origin, model, loading, trust=given.trust)
    found = verify_claims(explanation, classifier, backgrounds=given.backgrounds, image=given.image)
    figures = [name for name in FILES[2:] if (folder / name).exists()]
    found = Verification(found, recomputed=found.recomputed, unchecked=[*found.unchecked, *figures], notes=found.notes)
    if as_json:
        write_json({
            "folder": str(folder), "label": explanation.label, "holds": found.holds,
            "claims": [asdict(claim) for claim in found], "recomputed": list(found.recomputed),
            "not_checked": list(found.unchecked), "notes": list(found.notes),
        })  # fmt: skip
    else:
        print_claims(explanation, found)
    return 0 if found.holds else 1


def load_again(origin: "Origin", model: str | None, loading: Loading, *, trust: bool = False) -> "Classifier":
    """Load the given model, or the one that was explained, with the options it was loaded with.

    Raises ModelError where the record names a model that needs the user's word, or that is gone.
    """
    from becausal.api.origins import hash_file, is_remote, model_file, toml_file

    recorded = Loading.from_record(origin.loading)
    endpoint = tuple(each for each in recorded.endpoint if each.partition("=")[0].strip().replace("-", "_") not in PRIVATE)
    labels = None if isinstance(recorded.labels, str) and not trust else recorded.labels  # a file that is read
    recorded = replace(recorded, endpoint=endpoint, labels=labels)
    given = loading.over(recorded)
    if loading.like is None and recorded.like is not None and not trust:
        check_like(origin)
    if model is not None:
        file = model_file(model)  # the explained one may be at another place now
        is_same = model == origin.model or (file is not None and hash_file(file) == (origin.model_sha256 or ""))
        kind, _, folder = model.rpartition(":")
        is_same |= os.path.isdir(folder) and f"{kind}:{os.path.abspath(folder)}" == origin.model
        if not is_same and model.startswith("embed:"):  # what was asked, whatever the network
            loading = replace(loading, like=given.like, threshold=given.threshold)
        return open_model(model, given if is_same else loading, uncached=True)
    if not trust:
        check_model(origin)
        toml = toml_file(origin.model, given.preprocess)
        # A TOML file says how the model is loaded. It has to be the recorded one, or the user's.
        if toml is not None and (loading.preprocess is None or not str(given.preprocess).endswith(".toml")):
            then, now = origin.files.get("toml", {}).get("sha256"), None if is_remote(toml) else hash_file(toml)
            if then != now or _reads_elsewhere(toml):
                raise ModelError(
                    f"{one_line(toml, 200)}, which says how the model is loaded, is not the file that was used for the "
                    "explanation: give --model, or add --trust"
                )
    try:
        return open_model(origin.model, given, uncached=True)
    except ModelError as error:
        raise ModelError(f"the explained model cannot be loaded, give one with --model: {error}") from error


def check_like(origin: "Origin") -> None:
    """Raise ModelError unless the image that was compared with is the recorded file: no other one is read."""
    from becausal.api.origins import hash_file, is_remote

    path, file = str(origin.loading["like"]), origin.files.get("like", {})
    if path != file.get("path") or is_remote(path) or hash_file(path) != file.get("sha256"):
        raise ModelError(
            f"{one_line(path, 200)}, which the explained image was compared with, is gone or is not the recorded file: say "
            "where it is with --like"
        )


def check_model(origin: "Origin") -> None:
    """Raise ModelError unless the model of a record is harmless: bundled, or an ONNX file with the recorded hash."""
    from becausal.api.origins import hash_file, is_remote, model_file, split_spec
    from becausal.models.bundled import VARIANTS

    spec = origin.model
    kind, colon, target = split_spec(spec)[1].partition(":")  # a detector is as harmless as a classifier of the same kind
    if kind == "bundled" and target in VARIANTS and bool(target) == bool(colon):
        return
    shown = one_line(spec, 200)
    if kind not in KINDS and not spec.lower().endswith(".onnx"):
        raise ModelError(f"the explained model, {shown}, was not loaded from a file: give it with --model")
    file = model_file(spec)
    if file is None or (kind in KINDS and kind != "onnx"):
        raise ModelError(
            f"the record names the model {shown}, which would run code or use the network: give the model with --model, "
            "or add --trust if you trust whoever wrote this folder"
        )
    digest = None if is_remote(file) else hash_file(file)
    if digest is None:
        raise ModelError(f"the explained model is gone from {one_line(file, 200)}: say where it is with --model")
    if digest != origin.model_sha256:
        raise ModelError(
            f"{one_line(file, 200)} is not the model that was explained: its sha256 was "
            f"{one_line(origin.model_sha256, 12)}…, now {digest[:12]}…; give a model with --model, or add --trust"
        )


def _reads_elsewhere(toml: Path) -> bool:
    """Whether a TOML file names a labels file outside of its own folder."""
    try:
        with open_regular(toml) as file:
            labels = tomllib.load(file).get("labels")
        return isinstance(labels, str) and not (toml.parent / labels).resolve().is_relative_to(toml.parent.resolve())
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError, InputError):
        return True


def print_claims(explanation: "Explanation", found: "Verification") -> None:
    """Print the claims as a table, what was recomputed, what was not checked, and the result."""
    from rich.text import Text

    from becausal.render.wording import describe_place

    console = open_console()
    what = f"{one_line(explanation.label)} {describe_place(explanation)}".rstrip()
    console.print(Text(f"{what}, {one_line(explanation.origin.image)}", style="bold"))
    rows = [(claim.name, claim.stated, claim.found, "yes" if claim.holds else "NO") for claim in found]
    print_table(("claim", "stated", "found", "holds"), rows)
    for name, fields in (("recomputed, and the same", found.recomputed), ("not checked", found.unchecked)):
        if fields:
            console.print(Text(f"{name}: {one_line(', '.join(fields))}", style="dim"))
    for note in found.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    failed = [claim.name for claim in found if not claim.holds]
    if failed:
        console.print(Text(one_line(f"{', '.join(failed)}: does not hold"), style="bold red"))
    else:
        console.print(Text(f"all {len(found)} claims hold", style="bold green"))
