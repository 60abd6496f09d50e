"""`becausal verify`: ask every claim of a saved explanation again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import ModelError
from becausal.interfaces.cli import options, settings
from becausal.interfaces.cli.console import one_line, open_console, print_table, write_json
from becausal.models import open_model

if TYPE_CHECKING:
    from becausal.api.explanation import Explanation
    from becausal.core.checks import Claim
    from becausal.core.contracts import Classifier


@settings.expand_options
def verify(
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that explain has written.")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="SPEC", help="The model to ask. Default: the one that was explained."),
    ] = None,
    as_json: options.AsJson = False,
    given: settings.LoadingOptions,
) -> None:
    """Ask the model every claim of a saved explanation again.

    Exit status 1 if one of them does not hold. Model and loading options are those of the saved record unless given.

    **Examples**

    - `becausal verify becausal-out/cat`
    - `becausal verify becausal-out/cat --model other.onnx --json`
    """
    from becausal.api import verify as ask_again
    from becausal.api.explanation import Explanation

    explanation = Explanation.load(folder)
    classifier = load_again(explanation, model, given)
    claims = ask_again(explanation, classifier)
    remarks = compare_models(explanation, classifier)
    if as_json:
        write_json(as_record(explanation, folder, claims, remarks))
    else:
        print_claims(explanation, claims, remarks)
    if not all(claim.holds for claim in claims):
        raise typer.Exit(1)


def load_again(explanation: "Explanation", model: str | None, given: settings.Loading) -> "Classifier":
    """The model named on the command line, or that of the record with the options it was loaded with."""
    saved = explanation.origin
    if model is not None:
        return open_model(model, given, uncached=True)
    try:
        return open_model(saved.model, given.over(settings.Loading.from_record(saved.loading)), uncached=True)
    except ModelError as error:
        raise ModelError(f"the model of the record cannot be loaded, give another with --model: {error}") from error


def compare_models(explanation: "Explanation", classifier: "Classifier") -> list[str]:
    """What differs between the model that was explained and the one that is asked now."""
    then, now = explanation.origin.model_sha256, classifier.info.sha256
    if then is None or now is None:
        return ["whether it is the same model cannot be told: it has no hash"]
    if then != now:
        return [f"this is not the model that was explained: its sha256 was {then[:12]}…, now {now[:12]}…"]
    return []


def as_record(explanation: "Explanation", folder: Path, claims: "list[Claim]", remarks: list[str]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "folder": str(folder),
        "label": explanation.label,
        "holds": all(claim.holds for claim in claims),
        "claims": [
            {"name": claim.name, "stated": claim.stated, "found": claim.found, "holds": claim.holds} for claim in claims
        ],
        "notes": remarks,
    }


def print_claims(explanation: "Explanation", claims: "list[Claim]", remarks: list[str]) -> None:
    """The claims as a table, and the verdict."""
    from rich.text import Text

    console = open_console()
    console.print(Text(f"{one_line(explanation.label)}, {one_line(explanation.origin.image)}", style="bold"))
    rows = [(claim.name, claim.stated, claim.found, "yes" if claim.holds else "NO") for claim in claims]
    print_table(("claim", "stated", "found", "holds"), rows)
    for remark in remarks:
        console.print(Text(f"note: {remark}", style="yellow"))
    failed = [claim.name for claim in claims if not claim.holds]
    if failed:
        console.print(Text(f"{', '.join(failed)}: does not hold", style="bold red"))
    else:
        console.print(Text(f"all {len(claims)} claims hold", style="bold green"))
