"""`becausal check`: judge the explanations of a run by rules, as a test that can fail."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from becausal.core.errors import OptionError
from becausal.core.options import option
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.batch import Placement, PlacementOptions, make_job, start_run
from becausal.interfaces.cli.console import check_writable, complain, open_console, print_facts, write_json
from becausal.interfaces.cli.report import warn_unreadable
from becausal.models.loading import Loading

if TYPE_CHECKING:
    from rich.text import Text

    from becausal.batch.verdicts import Offender, Verdict

SHOWN = 3  # images that break a rule, printed
_STYLES = {"holds": "green", "broken": "bold red", "not judged": "bold yellow"}


@dataclass(frozen=True, kw_only=True)
class CheckFiles:
    """Files that a check writes, besides what it prints.

    Attributes:
        page: HTML page with the images that break rules.
        junit: JUnit XML, one test case per rule.
        markdown: Summary as Markdown.
    """

    page: str | None = option(None, "HTML page to write, with the worst images of each rule.", metavar="FILE.html")
    junit: str | None = option(None, "JUnit XML to write: one test case per rule.", metavar="FILE.xml")
    markdown: str | None = option(None, "Markdown summary to write.", metavar="FILE.md")

    def check(self) -> None:
        """Raise OutputError if a file cannot be written; before images are explained, which may take long."""
        for name in (self.page, self.junit, self.markdown):
            if name is not None:
                check_writable(Path(name).parent)

    @property
    def written(self) -> list[tuple[str, str]]:
        """The kinds and names of the files."""
        files = (("page", self.page), ("JUnit", self.junit), ("Markdown", self.markdown))
        return [(kind, name) for kind, name in files if name is not None]


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|IMAGES…",
        help="A run folder that `becausal batch` wrote. With --model: images, as `becausal batch` takes them.",
    ),
]
Rules = Annotated[
    Path | None,
    typer.Option(
        metavar="RULES.toml",
        help="The rules. Default: failures, of which none is allowed; outside if there are boxes, labels and overlap with "
        "--baseline, each at most 5 % of the images.",
    ),
]
Baseline = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Earlier run on the same images, for the rules labels and overlap.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Break a rule as soon as the share of images is above its limit, however few images were judged.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="SPEC", rich_help_panel=options.MODEL, help=f"Explain the images first. {options.SPEC_HELP}"
    ),
]
RunFolder = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="RUN", help="With --model: run folder, new or to be resumed.")
]
FileOptions = Annotated[
    CheckFiles, options.OptionGroup(partial(options.build_record, CheckFiles), options.options_of(CheckFiles, "Files"))
]


@options.expand_options
def check(
    *,
    sources: Sources,
    rules: Rules = None,
    baseline: Baseline = None,
    strict: Strict = False,
    as_json: options.AsJson = False,
    out: RunFolder = None,
    files: FileOptions,
    model: Model = None,
    placement: PlacementOptions,
    request: options.RequestOptions,
    loading: options.LoadingOptions,
) -> None:
    """Judge a run by rules: a gate for releases.

    Rules limit the share of images whose explanation lies outside its object or in a forbidden region, is too large or not
    necessary, or has changed since a baseline. An image that was not explained breaks the gate, unless the rules allow some
    to fail. A rule is broken if the data say so: if the lower bound of the
    share's Wilson interval is above the limit. Exit status: 0 if all rules hold, 1 if one is broken, 2 if one could not be
    judged.

    **Examples**

    - `becausal check run`
    - `becausal check run --rules rules.toml --baseline run-v1 --junit check.xml --page check.html`
    - `becausal check val.json --model net.onnx --preprocess imagenet --out run --rules rules.toml`
    """
    from becausal.batch.check import default_rules, judge_run, open_rules
    from becausal.batch.reading import BatchRun

    given = open_rules(rules, baseline, reads_files=model is not None)
    files.check()
    if model is None:
        _expect_run(sources, out, is_plain=(placement, request, loading) == (Placement(), Request(), Loading()))
    with ExitStack() as stack:
        earlier = None if baseline is None else stack.enter_context(BatchRun(baseline))
        folder = sources[0] if model is None else _explain(sources, model, out, placement, request, loading, quiet=as_json)
        run = stack.enter_context(BatchRun(folder))
        chosen = given or default_rules(run, earlier)
        verdict = judge_run(run, chosen, baseline=earlier, strict=strict)
        if files.page is not None:
            from becausal.batch.export import write_output
            from becausal.batch.pages import render_check

            write_output(Path(files.page), render_check(verdict, chosen, run, earlier).encode("utf-8"))
            warn_unreadable(*(each for each in (run, earlier) if each is not None))
    _report(verdict, files, as_json=as_json)
    if verdict.status:
        raise typer.Exit(verdict.status)


def _report(verdict: "Verdict", files: CheckFiles, *, as_json: bool) -> None:
    """Write the files for CI systems, print the verdict, and say why rules could not be judged."""
    _write_files(verdict, files)
    if as_json:
        write_json(verdict.record())
    else:
        print_verdict(verdict, files)
    for rule in verdict.rules:
        if rule.reason is not None:
            complain(f"the rule {rule.name} could not be judged: {rule.reason}")


def _expect_run(sources: list[str], out: Path | None, *, is_plain: bool) -> None:
    """Raise OptionError for what is not one run folder without options of a new run."""
    if len(sources) > 1:
        raise OptionError(f"expected one run folder, not {len(sources)}: to explain images first, add --model")
    if not is_plain or out is not None:
        raise OptionError("options of a new run were given: to explain images first, add --model")


def _explain(
    images: list[str],
    model: str,
    out: Path | None,
    placement: Placement,
    request: Request,
    loading: Loading,
    *,
    quiet: bool,
) -> Path:
    """Explain images into a run folder, and return it."""
    if out is None:
        raise OptionError("--model explains the images first: add --out RUN, the run folder to write to")
    summary = start_run(images, make_job(model, request, loading, placement), out, placement, quiet=quiet)
    if summary.was_stopped:
        raise typer.Exit(130)
    return out


def _write_files(verdict: "Verdict", files: CheckFiles) -> None:
    from becausal.batch.export import write_output
    from becausal.batch.verdicts import format_junit, format_markdown

    if files.junit is not None:
        write_output(Path(files.junit), format_junit(verdict))
    if files.markdown is not None:
        write_output(Path(files.markdown), format_markdown(verdict).encode("utf-8"))


def print_verdict(verdict: "Verdict", files: CheckFiles) -> None:
    """Print the verdict, every rule, the worst images of broken ones, and the names of files."""
    from rich.text import Text

    console = open_console()
    console.print(Text(f"{one_line(verdict.run)}: ").append(verdict.headline, _STYLES[verdict.outcome]))
    width = max(len(rule.outcome) for rule in verdict.rules)
    facts: list[tuple[str, str | Text]] = []
    for rule in verdict.rules:
        text = Text(f"{rule.outcome:<{width}}", style=f"not dim {_STYLES[rule.outcome]}")
        facts.append((rule.name, text.append(f"  {rule.summary}", style="not dim not bold default")))
        if rule.outcome == "broken":
            facts += [("", _describe_offender(each, width)) for each in rule.worst[:SHOWN]]
    print_facts(console, [*facts, *files.written])


def _describe_offender(offender: "Offender", width: int) -> "Text":
    from rich.text import Text

    return Text(f"{'':{width}}  {one_line(offender.image)}: {offender.detail}", style="not dim")
