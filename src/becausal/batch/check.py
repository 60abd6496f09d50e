"""`becausal.check`: a test that the model looks at the right thing."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from becausal.batch.differences import match_runs
from becausal.batch.evidence import Evidence, Places
from becausal.batch.inputs import find_inputs
from becausal.batch.local import InProcessPool
from becausal.batch.reading import BatchRun
from becausal.batch.records import BatchJob
from becausal.batch.rules import RULES, CheckRules, Judgement, LabelsRule, OutsideRule, OverlapRule, Rule, read_rules
from becausal.batch.run import run_batch
from becausal.batch.settings import settings_of
from becausal.batch.store import BatchStore
from becausal.batch.verdicts import Offender, Outcome, RuleVerdict, Verdict
from becausal.core.errors import OptionError
from becausal.core.intervals import wilson_interval
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.models import Loading

WORST = 24  # images per rule that are kept, to be shown


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
    given = open_rules(rules, baseline, reads_files=model is not None)
    with ExitStack() as stack:
        earlier = None if baseline is None else stack.enter_context(BatchRun(baseline))
        run = stack.enter_context(BatchRun(_explain(source, model, out, request, loading)))
        return judge_run(run, given or default_rules(run, earlier), baseline=earlier, strict=strict)


def open_rules(
    source: str | Path | Mapping[str, Any] | None, baseline: str | Path | None, *, reads_files: bool
) -> CheckRules | None:
    """The rules of a source, None for the default ones.

    reads_files: whether their files are read now, before images are explained, which may take long. Raises InputError for
    what cannot be used, for rules that need a baseline where there is none, and for a baseline that no rule uses.
    """
    if source is None:
        return None
    rules = read_rules(source)
    names = [name for name, rule in RULES.items() if rule.needs_baseline]
    uses_baseline = any(rule.needs_baseline for rule in rules.by_name.values())
    if uses_baseline and baseline is None:
        raise OptionError(f"the rules {' and '.join(names)} compare with an earlier run, but no baseline was given")
    if not uses_baseline and baseline is not None:
        tables = " or ".join(f"[{name}]" for name in names)
        raise OptionError(f"a baseline was given, but no rule uses it: add {tables} to the rules")
    if reads_files:
        for rule in rules.by_name.values():
            rule.place(Places(rules.folder))
    return rules


def default_rules(run: BatchRun, baseline: BatchRun | None) -> CheckRules:
    """The rules for a check without any.

    `failures`, with a limit of 0; `outside` if the run has boxes; `labels` and `overlap` (below 0.3) with a baseline, each
    with a limit of 5 % of the images.
    """
    has_boxes = next(run.rows("boxes IS NOT NULL", limit=1), None) is not None
    rules: dict[str, Rule] = {"outside": OutsideRule()} if has_boxes else {}
    if baseline is not None:
        rules |= {"labels": LabelsRule(), "overlap": OverlapRule()}
    return CheckRules(given=rules)


def judge_run(run: BatchRun, rules: CheckRules, *, baseline: BatchRun | None, strict: bool) -> Verdict:
    """Judge all images of a run. Memory does not grow with their number.

    baseline: the run that labels and explanations are compared with. strict: see `check`. Raises OutputError if the index,
    or an explanation that a rule needs, cannot be read, InputError for files of the rules.
    """
    places = Places(rules.folder)
    tallies = [_Tally(name, rule) for name, rule in rules.by_name.items()]
    for tally in tallies:
        tally.rule.place(places)  # a file that cannot be read is refused even where no image needs it
    images = 0
    for image in _read(run, baseline, places):
        images += 1
        for tally in tallies:
            tally.add(image)
    return Verdict(
        run=str(run.folder),
        baseline=None if baseline is None else str(baseline.folder),
        images=images,
        confidence=rules.confidence,
        strict=strict,
        rules=tuple(tally.close(run, rules, strict) for tally in tallies),
        unit=run.unit,
    )


def _read(run: BatchRun, baseline: BatchRun | None, places: Places) -> Iterator[Evidence]:
    pairs = ((row, None) for row in run.rows()) if baseline is None else match_runs(run, baseline)
    return (Evidence(run, row, places, baseline, earlier) for row, earlier in pairs)


@dataclass
class _Tally:
    """Counts the images that break one rule, and keeps the worst."""

    name: str
    rule: Rule
    judged: int = 0
    broken: int = 0
    skipped: int = 0
    worst: list[tuple[float, int, Offender]] = field(default_factory=list)  # a heap: the least bad one first

    def add(self, image: Evidence) -> None:
        found = self.rule.judge(image)
        if found is None:
            self.skipped += image.is_explained
            return
        self.judged += 1
        if found.is_breach:
            self.broken += 1
            rank = found.badness, -image.row["id"]
            if len(self.worst) < WORST or rank > self.worst[0][:2]:
                entry = (*rank, self._describe(image, found))
                (heapq.heappush if len(self.worst) < WORST else heapq.heapreplace)(self.worst, entry)

    def _describe(self, image: Evidence, found: Judgement) -> Offender:
        row, earlier = image.row, image.earlier if self.rule.needs_baseline else None
        detail = one_line(found.detail, 300)
        detail = detail if row["box"] is None else f"box {row['box']}: {detail}"
        before = None if earlier is None else earlier["id"]
        return Offender(row["id"], row["image"], row["label"], found.value, detail, before)

    def close(self, run: BatchRun, rules: CheckRules, strict: bool) -> RuleVerdict:
        low, high = wilson_interval(self.broken, self.judged, rules.confidence) if self.judged else (0.0, 1.0)
        outcome: Outcome = "not judged"
        if self.judged:
            outcome = "broken" if (self.broken / self.judged if strict else low) > self.rule.max_share else "holds"
        return RuleVerdict(
            name=self.name,
            breach=self.rule.breach,
            outcome=outcome,
            limit=self.rule.max_share,
            judged=self.judged,
            broken=self.broken,
            skipped=self.skipped,
            low=low,
            high=high,
            reason=None if self.judged else self.rule.missing(run.folder, rules.folder),
            worst=tuple(offender for _, _, offender in sorted(self.worst, key=lambda entry: entry[:2], reverse=True)),
            unit=run.unit,
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
