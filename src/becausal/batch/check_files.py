"""The verdict on a run for CI systems: JUnit XML and Markdown."""

from xml.etree import ElementTree

from becausal.batch.rules import format_limit
from becausal.batch.verdicts import RuleVerdict, Verdict
from becausal.core.text import one_line
from becausal.render.wording import format_count

LISTED = 10  # images that break a rule, named in a file
_SIGNS = {"holds": "✅", "broken": "❌", "not judged": "⚠️"}


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
