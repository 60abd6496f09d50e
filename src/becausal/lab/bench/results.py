"""The result of a bench."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becausal.core.version import versions
from becausal.lab.bench.findings import Findings, Row
from becausal.lab.bench.formatting import count_failures, format_command
from becausal.lab.bench.plan import Bench, BenchSettings, ImageSelection

SCHEMA = "becausal/lab/bench/1"


@dataclass(frozen=True)
class BenchRun:
    """A finished run.

    Attributes:
        folder: Its folder.
        bench: The bench.
        settings: Its settings.
        record: Settings and model as they were saved.
        rows: The rows in order.
        selection: The images, and the number of excluded images by reason.
        findings: Tables and plots.
        methods_left_out: Methods that did not run, with the reasons.
    """

    folder: Path
    bench: Bench
    settings: BenchSettings
    record: dict[str, Any]
    rows: list[Row]
    selection: ImageSelection
    findings: Findings
    methods_left_out: dict[str, str]

    @property
    def failures(self) -> dict[str, dict[str, int]]:
        """For each method the number of images without an explanation, by reason."""
        return count_failures(self.rows)

    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return {
            "schema": SCHEMA,
            "bench": self.bench.name,
            "question": self.bench.question,
            "paper": self.bench.paper,
            "settings": self.record,
            "command": format_command(self.record),
            "pictures": len(self.selection.samples),
            "left_out": dict(self.selection.left_out),
            "methods_left_out": self.methods_left_out,
            "failures": self.failures,
            **self.findings.record(),
            "versions": versions(),
        }
