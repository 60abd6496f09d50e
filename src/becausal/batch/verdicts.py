"""The verdict on a run: for people, and as JSON, JUnit XML and Markdown for CI systems."""

from dataclasses import asdict, dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from becausal.batch.rules import format_limit
from becausal.core.text import one_line
from becausal.render.wording import format_count, format_share

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
        bounds = f"{format_share(self.share)}; {format_share(self.low)} to {format_share(self.high)}"
        text = f"{self.broken:,} of {format_count(self.judged, self.unit)} ({bounds}), at most {format_limit(self.limit)}"
        text += f"; {self.skipped:,} more could not be judged" if self.skipped else ""
        units = "boxes" if self.unit == "box" else "images"
        return f"{text}; too few {units} to be sure" if self.is_unclear else text

    @property
    def summary(self) -> str:
        """What was found, and of what, on one line."""
        return one_line(self.found if self.reason is not None else f"{self.found}: {self.breach}")


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


def format_junit(verdict: Verdict) -> bytes:
    """The verdict as JUnit XML: one test case per rule; a broken rule is a failure, one that was not judged an error."""
    counts = {
        "tests": str(len(verdict.rules)),
        "failures": str(sum(rule.outcome == "broken" for rule in verdict.rules)),
        "errors": str(sum(rule.outcome == "not judged" for rule in verdict.rules)),
    }
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
        broken.text = "\n".join([rule.summary, *_list_worst(rule)]) + "\n"
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def format_markdown(verdict: Verdict) -> str:
    """The verdict as Markdown, e.g. for the summary of a job: a table of the rules, and the worst images of each."""
    about = f"{_code(verdict.run)}, {format_count(verdict.images, verdict.unit)}"
    about += f", compared with {_code(verdict.baseline)}" if verdict.baseline is not None else ""
    lines = [
        f"## {_SIGNS[verdict.outcome]} {verdict.headline}",
        "",
        about,
        "",
        "| | rule | found | breach |",
        "|---|---|---|---|",
    ]
    lines += [f"| {_SIGNS[r.outcome]} | {r.name} | {_plain(r.found)} | {_plain(r.breach)} |" for r in verdict.rules]
    how = "without regard to the interval" if verdict.strict else "if the lower bound is above the limit"
    lines += ["", f"In brackets: share and {format_limit(verdict.confidence)} Wilson interval. A rule is broken {how}."]
    for rule in verdict.rules:
        if rule.worst:
            lines += ["", f"<details><summary>{rule.name}: the worst images</summary>", "", "| image | |", "|---|---|"]
            lines += [f"| {_code(each.image)} | {_code(each.detail)} |" for each in rule.worst[:LISTED]]
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _list_worst(rule: RuleVerdict) -> list[str]:
    """The worst images, one per line. Paths and details come from anywhere; XML allows no control characters."""
    return [f"{one_line(each.image)}: {one_line(each.detail)}" for each in rule.worst[:LISTED]]


def _code(text: str) -> str:
    """Any text as a code span in a table, in which nothing is a link, a mention or HTML."""
    return "`" + one_line(text).replace("`", "'").replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    """A sentence of ours in a table; a path in it may hold anything."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
    return "".join(f"\\{c}" if c in "\\`*_[]|~" else c for c in text)
