"""`becausal.check`: a test that the model looks at the right thing; its verdict, also as JUnit XML and Markdown."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from becausal.batch.inputs import find_inputs
from becausal.batch.pools import InProcessPool
from becausal.batch.reading import BatchRun
from becausal.batch.rules import (
    RULES,
    CheckRules,
    Evidence,
    Judgement,
    LabelsRule,
    OutsideRule,
    OverlapRule,
    Rule,
    read_rules,
    with_failures,
)
from becausal.batch.run import run_batch
from becausal.batch.settings import BatchJob, settings_of
from becausal.batch.store import BatchStore
from becausal.batch.summaries import match_runs
from becausal.core.errors import OptionError
from becausal.core.intervals import wilson_interval
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.models import Loading
from becausal.render.numbers import format_count, format_limit, format_share

WORST = 24  # images per rule that are kept, to be shown
Outcome = Literal["holds", "broken", "not judged"]
LISTED = 10  # images that break a rule, named in a file
_SIGNS = {"holds": "✅", "broken": "❌", "not judged": "⚠️"}


@dataclass(frozen=True)
class Offender:
    """An image that breaks a rule.

    Attributes:
        id: Its number in the run.
        image: Its path.
        label: Its label, None if it could not be explained.
        value: What was measured.
        detail: The same in words, on one line.
        baseline_id: Its number in the baseline, None without one.
    """

    id: int
    image: str
    label: str | None
    value: float
    detail: str
    baseline_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class RuleVerdict:
    """One rule, judged.

    Attributes:
        name: The rule.
        breach: What breaks it.
        outcome: "holds", "broken" or "not judged".
        limit: The share of images that may break it.
        judged: Number of images it was judged on.
        broken: Number of images that break it.
        skipped: Number of explained images that it could not be judged on, e.g. because they have no boxes.
        skipped_because: Why, each reason with the number of images.
        low: Lower bound of the share of images that break it.
        high: Upper bound.
        reason: Why it was not judged, else None.
        worst: The images that break it most clearly, the worst first.
        unit: "image", or "box" for a run of all boxes; then boxes are counted everywhere.
    """

    name: str
    breach: str
    outcome: Outcome
    limit: float
    judged: int
    broken: int
    skipped: int
    low: float
    high: float
    reason: str | None = None
    worst: tuple[Offender, ...] = ()
    unit: str = "image"
    skipped_because: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of the judged images that break it."""
        return self.broken / self.judged if self.judged else 0.0

    @property
    def is_unclear(self) -> bool:
        """Whether it holds only because too few images were judged to tell."""
        return self.outcome == "holds" and self.share > self.limit

    @property
    def found(self) -> str:
        """What was found, e.g. `3 of 30 images (10 %; 3.5 % to 26 %), at most 5 %`; or why nothing was."""
        if self.reason is not None:
            return self.reason
        return "; ".join(filter(None, (self._counted, self._remarks)))

    @property
    def _counted(self) -> str:
        bounds = f"{format_share(self.share)}; {format_share(self.low)} to {format_share(self.high)}"
        return f"{self.broken:,} of {format_count(self.judged, self.unit)} ({bounds}), at most {format_limit(self.limit)}"

    @property
    def _remarks(self) -> str:
        units = "boxes" if self.unit == "box" else "images"
        few = f"too few {units} to be sure" if self.is_unclear else ""
        return "; ".join(filter(None, (self.left_out, few)))

    @property
    def left_out(self) -> str:
        """How many images could not be judged, and why: `1 more could not be judged (not in the baseline)`, if any."""
        if not self.skipped:
            return ""
        reasons = sorted(self.skipped_because.items(), key=lambda pair: (-pair[1], pair[0]))
        why = ", ".join(text if len(reasons) == 1 else f"{count:,} {text}" for text, count in reasons)
        return f"{self.skipped:,} more could not be judged" + (f" ({why})" if why else "")

    @property
    def summary(self) -> str:
        """What was found, and of what, on one line."""
        if self.reason is not None:
            return one_line(self.reason)
        return one_line("; ".join(filter(None, (f"{self._counted}: {self.breach}", self._remarks))))


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """The verdict on a run.

    Attributes:
        run: The run folder.
        baseline: The run it was compared with, None without one.
        images: Number of images of the run, whether they were explained or not.
        confidence: Of the intervals.
        strict: Whether a rule is broken as soon as the share is above its limit.
        rules: Every rule, judged.
        unit: "image", or "box" for a run of all boxes.
    """

    run: str
    baseline: str | None
    images: int
    confidence: float
    strict: bool
    rules: tuple[RuleVerdict, ...]
    unit: str = "image"

    @property
    def outcome(self) -> Outcome:
        """ "broken" if a rule is broken; else "not judged" if one could not be judged; else "holds"."""
        outcomes: tuple[Outcome, ...] = ("broken", "not judged")
        return next((each for each in outcomes if any(rule.outcome == each for rule in self.rules)), "holds")

    @property
    def status(self) -> int:
        """The exit status: 0 if all rules hold, 1 if one is broken, 2 if one could not be judged."""
        return {"holds": 0, "broken": 1, "not judged": 2}[self.outcome]

    @property
    def holds(self) -> bool:
        """Whether all rules hold."""
        return self.outcome == "holds"

    @property
    def headline(self) -> str:
        """The verdict in one sentence, without a full stop."""
        count = format_count(len(self.rules), "rule")
        if self.holds:
            return "the rule holds" if len(self.rules) == 1 else f"all {count} hold"
        return f"{sum(rule.outcome == self.outcome for rule in self.rules):,} of {count} {self.outcome}"

    def record(self) -> dict[str, Any]:
        """The verdict as JSON can hold it."""
        own = {name: value for name, value in asdict(self).items() if name != "rules"}
        rules = [{**asdict(rule), "share": rule.share} for rule in self.rules]
        return {**own, "outcome": self.outcome, "status": self.status, "rules": rules}

    def __repr__(self) -> str:
        return f"<Verdict {one_line(self.run)}: {self.headline}>"

    def __str__(self) -> str:
        lines = [f"{one_line(self.run)}: {self.headline}"]
        for rule in self.rules:
            lines.append(f"{rule.name}: {rule.outcome}: {rule.summary}")
            if rule.outcome == "broken":
                lines += [f"    {one_line(each.image)}: {each.detail}" for each in rule.worst[:5]]
        return "\n".join(lines)


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
    given = open_rules(rules, baseline)
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    with ExitStack() as stack:
        earlier = None if baseline is None else stack.enter_context(BatchRun(baseline))
        if model is not None:
            if out is None:
                raise OptionError("with a model, out is needed: the run folder to write to")
            _explain(sources, model, Path(out), request or Request(), loading or Loading())
        elif out is not None or request is not None or loading is not None:
            raise OptionError("out, request and loading are for images that are explained first: give a model, too")
        elif len(sources) != 1:
            raise OptionError(f"expected one run folder, not {len(sources)}: to explain images first, give a model")
        run = stack.enter_context(BatchRun(sources[0] if out is None else out))
        return judge_run(run, given or default_rules(run, earlier), baseline=earlier, strict=strict)


def _explain(sources: Sequence[str | Path], model: str, out: Path, request: Request, loading: Loading) -> None:
    """Explain images into a run folder, in this process."""
    inputs = find_inputs(str(each) for each in sources)
    folder = str(Path.cwd())
    job = BatchJob(model=model, request=request, loading=loading, categories=inputs.categories, folder=folder)
    with closing(BatchStore(out, inputs, settings_of(job, inputs))) as store:
        store.set_limit(None)
        width = 1 if loading.device == "cpu" else None
        run_batch(store, InProcessPool(job, store.check_model, width=width))


def open_rules(source: str | Path | Mapping[str, Any] | None, baseline: str | Path | None) -> CheckRules | None:
    """The rules of a source, with their files; None for the default ones.

    Raises InputError for what cannot be used, for rules that need a baseline where there is none, and for a baseline that
    no rule uses.
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
    for rule in rules.by_name.values():
        _ = rule.place  # opens its file: now, not after images have been explained, and even if no image needs it
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
    return CheckRules(by_name=with_failures(rules))


def judge_run(run: BatchRun, rules: CheckRules, *, baseline: BatchRun | None, strict: bool) -> Verdict:
    """Judge all images of a run. Memory does not grow with their number.

    baseline: the run that labels and explanations are compared with. strict: see `check`. Raises OutputError if the index,
    or an explanation that a rule needs, cannot be read, InputError for files of the rules.
    """
    tallies = [_Tally(name, rule) for name, rule in rules.by_name.items()]
    images = 0
    pairs = ((row, None) for row in run.rows()) if baseline is None else match_runs(run, baseline)
    for row, earlier in pairs:
        images += 1
        image = Evidence(run, row, baseline, earlier)
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


@dataclass
class _Tally:
    """Counts the images that break one rule, and keeps the worst."""

    name: str
    rule: Rule
    judged: int = 0
    broken: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # by reason
    worst: list[tuple[float, int, Offender]] = field(default_factory=list)  # a heap: the least bad one first

    def add(self, image: Evidence) -> None:
        found = self.rule.judge(image)
        if not isinstance(found, Judgement):
            if found is not None:
                self.skipped[found] += 1
            return
        self.judged += 1
        if found.is_breach:
            self.broken += 1
            rank = found.badness, -image.row["id"]
            if len(self.worst) < WORST or rank > self.worst[0][:2]:
                row, earlier = image.row, image.earlier if self.rule.needs_baseline else None
                detail = one_line(found.detail, 300)
                detail = detail if row["box"] is None else f"box {row['box']}: {detail}"
                before = None if earlier is None else earlier["id"]
                offender = Offender(row["id"], row["image"], row["label"], found.value, detail, before)
                (heapq.heappush if len(self.worst) < WORST else heapq.heapreplace)(self.worst, (*rank, offender))

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
            skipped=self.skipped.total(),
            skipped_because=dict(self.skipped),
            low=low,
            high=high,
            reason=None if self.judged else self.rule.missing(run.folder),
            worst=tuple(offender for _, _, offender in sorted(self.worst, key=lambda entry: entry[:2], reverse=True)),
            unit=run.unit,
        )


def format_junit(verdict: Verdict) -> bytes:
    """The verdict as JUnit XML: one test case per rule; a broken rule is a failure, one that was not judged an error."""
    outcomes = [rule.outcome for rule in verdict.rules]
    numbers = {"tests": len(outcomes), "failures": outcomes.count("broken"), "errors": outcomes.count("not judged")}
    counts = {name: str(number) for name, number in numbers.items()}
    root = ElementTree.Element("testsuites", {"name": "becausal check", **counts})
    about = {"name": f"becausal check {one_line(verdict.run)}", **counts, "skipped": "0"}
    suite = ElementTree.SubElement(root, "testsuite", about)
    for rule in verdict.rules:
        case = ElementTree.SubElement(suite, "testcase", classname="becausal.check", name=rule.name)
        if rule.outcome == "holds":
            ElementTree.SubElement(case, "system-out").text = f"{rule.summary}\n"
            continue
        tag = "failure" if rule.outcome == "broken" else "error"
        broken = ElementTree.SubElement(case, tag, message=rule.summary, type=rule.outcome)
        # Paths and details come from anywhere; XML allows no control characters.
        worst = [f"{one_line(each.image)}: {one_line(each.detail)}" for each in rule.worst[:LISTED]]
        broken.text = "\n".join([rule.summary, *worst]) + "\n"
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def format_markdown(verdict: Verdict) -> str:
    """The verdict as Markdown, e.g. for the summary of a job: a table of the rules, and the worst images of each."""
    about = f"{_code(verdict.run)}, {format_count(verdict.images, verdict.unit)}"
    about += f", compared with {_code(verdict.baseline)}" if verdict.baseline is not None else ""
    lines = [f"## {_SIGNS[verdict.outcome]} {verdict.headline}", "", about, ""]
    lines += ["| | rule | found | breach |", "|---|---|---|---|"]
    lines += [f"| {_SIGNS[r.outcome]} | {r.name} | {_plain(r.found)} | {_plain(r.breach)} |" for r in verdict.rules]
    how = "without regard to the interval" if verdict.strict else "if the lower bound is above the limit"
    lines += ["", f"In brackets: share and {format_limit(verdict.confidence)} Wilson interval. A rule is broken {how}."]
    for rule in verdict.rules:
        if rule.worst:
            lines += ["", f"<details><summary>{rule.name}: the worst images</summary>", "", "| image | |", "|---|---|"]
            lines += [f"| {_code(each.image)} | {_code(each.detail)} |" for each in rule.worst[:LISTED]]
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Any text as a code span in a table, in which nothing is a link, a mention or HTML."""
    return "`" + one_line(text).replace("`", "'").replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    """A sentence of ours in a table; a path in it may hold anything."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
    return "".join(f"\\{c}" if c in "\\`*_[]|~" else c for c in text)
