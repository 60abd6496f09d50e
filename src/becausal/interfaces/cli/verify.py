"""`becausal verify`: check every claim of a saved explanation again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import ModelError
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import open_console, print_table, write_json
from becausal.models import Loading, open_model

if TYPE_CHECKING:
    from becausal.api.explanation import Explanation
    from becausal.core.checks import Claim
    from becausal.core.contracts import Classifier


@options.expand_options
def verify(
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `becausal explain` wrote for one image.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="SPEC",
            rich_help_panel=options.MODEL,
            help="Model to check the claims with. Default: the model that was explained.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    loading: options.LoadingOptions,
) -> None:
    """Check every claim of a saved explanation again, with the model.

    The model and its options are those of the saved explanation unless you give others. Exit status: 0 if all claims
    hold, 1 if one does not.

    **Examples**

    - `becausal verify becausal-out/photo`
    - `becausal verify becausal-out/photo --model other.onnx --json`
    """
    from becausal.api import verify as verify_claims
    from becausal.api.explanation import Explanation

    explanation = Explanation.load(folder)
    classifier = load_again(explanation, model, loading)
    claims = verify_claims(explanation, classifier)
    notes = compare_models(explanation, classifier)
    if as_json:
        write_json(make_record(explanation, folder, claims, notes))
    else:
        print_claims(explanation, claims, notes)
    if not all(claim.holds for claim in claims):
        raise typer.Exit(1)


def load_again(explanation: "Explanation", model: str | None, loading: Loading) -> "Classifier":
    """Load the given model, or the one that was explained, with the options it was loaded with."""
    origin = explanation.origin
    if model is not None:
        return open_model(model, loading, uncached=True)
    try:
        return open_model(origin.model, loading.over(Loading.from_record(origin.loading)), uncached=True)
    except ModelError as error:
        raise ModelError(f"the explained model cannot be loaded, give one with --model: {error}") from error


def compare_models(explanation: "Explanation", classifier: "Classifier") -> list[str]:
    """Notes on whether the model is the one that was explained."""
    then, now = explanation.origin.model_sha256, classifier.info.sha256
    if then is None or now is None:
        return ["unknown whether this is the model that was explained: it has no hash"]
    if then != now:
        return [f"this is not the model that was explained: its sha256 was {then[:12]}…, now {now[:12]}…"]
    return []


def make_record(explanation: "Explanation", folder: Path, claims: "list[Claim]", notes: list[str]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "folder": str(folder),
        "label": explanation.label,
        "holds": all(claim.holds for claim in claims),
        "claims": [
            {"name": claim.name, "stated": claim.stated, "found": claim.found, "holds": claim.holds} for claim in claims
        ],
        "notes": notes,
    }


def print_claims(explanation: "Explanation", claims: "list[Claim]", notes: list[str]) -> None:
    """Print the claims as a table, and the result."""
    from rich.text import Text

    console = open_console()
    console.print(Text(f"{one_line(explanation.label)}, {one_line(explanation.origin.image)}", style="bold"))
    rows = [(claim.name, claim.stated, claim.found, "yes" if claim.holds else "NO") for claim in claims]
    print_table(("claim", "stated", "found", "holds"), rows)
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))
    failed = [claim.name for claim in claims if not claim.holds]
    if failed:
        console.print(Text(f"{', '.join(failed)}: does not hold", style="bold red"))
    else:
        console.print(Text(f"all {len(claims)} claims hold", style="bold green"))
