"""`becausal.check`: a test that the model looks at the right thing."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from becausal.batch.criteria import check_files, make_criteria
from becausal.batch.inputs import find_inputs
from becausal.batch.local import InProcessPool
from becausal.batch.reading import BatchRun
from becausal.batch.records import BatchJob
from becausal.batch.rules import CheckRules, LabelsRule, OutsideRule, OverlapRule, read_rules
from becausal.batch.run import run_batch
from becausal.batch.settings import settings_of
from becausal.batch.store import BatchStore
from becausal.batch.verdicts import Verdict, judge_run
from becausal.core.errors import OptionError
from becausal.core.request import Request
from becausal.models import Loading


def check(
    source: str | Path | Sequence[str | Path],
    model: str | None = None,
    *,
    out: str | Path | None = None,
    baseline: str | Path | None = None,
    rules: str | Path | Mapping[str, Any] | None = None,
    strict: bool = False,
    request: Request | None = None,
    loading: Loading | None = None,
) -> Verdict:
    """Judge the explanations of a data set by rules, e.g. how many lie outside their object.

    Args:
        source: A run folder that `becausal batch` wrote. With `model`: images, as `becausal batch` takes them.
        model: The model spec to explain the images with, into `out`. A complete run in `out` is not repeated.
        out: The run folder, with `model`.
        baseline: Another run folder with the same images, for the rules `labels` and `overlap`.
        rules: A TOML file, or its content as a dictionary. Default: see `default_rules`.
        strict: Whether a rule is broken as soon as the share of images that break it is above its limit. By default, the
            lower bound of its Wilson interval must be.
        request: What to explain, with `model`.
        loading: How the model is loaded, with `model`.

    Returns:
        The verdict. `verdict.holds` says whether all rules hold, `str(verdict)` why.

    Raises:
        InputError: A rule, a file or the run cannot be used.
        OutputError: A run cannot be read.
    """
    given = None if rules is None else read_rules(rules)
    check_baseline(given, baseline)
    if given is not None and model is not None:
        check_files(given)
    with ExitStack() as stack:
        earlier = None if baseline is None else stack.enter_context(BatchRun(baseline))
        run = stack.enter_context(BatchRun(_explain(source, model, out, request, loading)))
        chosen = default_rules(run, earlier) if given is None else given
        criteria = make_criteria(chosen, run)
        return judge_run(run, criteria, baseline=earlier, confidence=chosen.confidence, strict=strict)


def check_baseline(rules: CheckRules | None, baseline: str | Path | None) -> None:
    """Raise OptionError for rules that need a baseline where there is none, and for a baseline that no rule uses."""
    if rules is None:
        return
    if rules.needs_baseline and baseline is None:
        raise OptionError("the rules labels and overlap compare with an earlier run, but no baseline was given")
    if not rules.needs_baseline and baseline is not None:
        raise OptionError("a baseline was given, but no rule uses it: add [labels] or [overlap] to the rules")


def default_rules(run: BatchRun, baseline: BatchRun | None) -> CheckRules:
    """The rules for a check without any.

    `failures`, with a limit of 0; `outside` if the run has boxes; `labels` and `overlap` (below 0.3) with a baseline, each
    with a limit of 5 % of the images.
    """
    has_boxes = next(run.rows("boxes IS NOT NULL", limit=1), None) is not None
    return CheckRules(
        outside=OutsideRule() if has_boxes else None,
        labels=LabelsRule() if baseline is not None else None,
        overlap=OverlapRule() if baseline is not None else None,
    )


def _explain(
    source: str | Path | Sequence[str | Path],
    model: str | None,
    out: str | Path | None,
    request: Request | None,
    loading: Loading | None,
) -> Path:
    """The run folder; with a model, the images are explained first, in this process."""
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    if model is None:
        if out is not None or request is not None or loading is not None:
            raise OptionError("out, request and loading are for images that are explained first: give a model, too")
        if len(sources) != 1:
            raise OptionError(f"expected one run folder, not {len(sources)}: to explain images first, give a model")
        return Path(sources[0])
    if out is None:
        raise OptionError("with a model, out is needed: the run folder to write to")
    inputs = find_inputs(str(each) for each in sources)
    job = BatchJob(
        model=model,
        request=request or Request(),
        loading=loading or Loading(),
        categories=inputs.categories,
        folder=str(Path.cwd()),
    )
    with closing(BatchStore(Path(out), inputs, settings_of(job, inputs))) as store:
        store.set_limit(None)
        width = 1 if job.loading.device == "cpu" else None
        with closing(InProcessPool(job, store.check_model, width=width)) as pool:
            run_batch(store, pool)
    return Path(out)
