"""Running a bench: every method on every image, each row kept as it comes, then tables, figures and the page."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from becausal.api import versions
from becausal.bench.choosing import check_fill, choose_methods
from becausal.bench.findings import Findings, Row
from becausal.bench.performing import Progress, in_order, perform_arms
from becausal.bench.plan import Bench, Pool, Settings
from becausal.bench.runs import Store, table_text, write_whole
from becausal.bench.wording import count_failures, say_command
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, OptionError
from becausal.models import as_classifier

#: Every bench, and the module it lives in.
BENCHES = {
    "photobombing": "photobombing",
    "roaming-panda": "roaming",
    "occlusion": "occlusion",
    "scenes": "generated",
    "fills": "filling",
    "exact": "exactness",
    "convergence": "convergence",
    "misclassified": "misclassified",
    "faithfulness": "faithfulness",
}

SCHEMA = "becausal/bench/1"


@dataclass(frozen=True)
class Run:
    """A finished run: where it is, its rows in order, and what was left out."""

    folder: Path
    bench: Bench
    settings: Settings
    record: dict[str, Any]
    rows: list[Row]
    pool: Pool
    findings: Findings
    methods_left_out: dict[str, str]

    @property
    def failures(self) -> dict[str, dict[str, int]]:
        """By method, how many images got no explanation, and why."""
        return count_failures(self.rows)

    def summary(self) -> dict[str, Any]:
        """What summary.json holds."""
        return {
            "schema": SCHEMA,
            "bench": self.bench.name,
            "question": self.bench.question,
            "paper": self.bench.paper,
            "settings": self.record,
            "command": say_command(self.record),
            "pictures": len(self.pool.samples),
            "left_out": dict(self.pool.left_out),
            "methods_left_out": self.methods_left_out,
            "failures": self.failures,
            **self.findings.record(),
            "versions": versions(),
        }


def load_bench(name: str) -> Bench:
    """The bench of that name. Raises OptionError."""
    if name not in BENCHES:
        raise OptionError(f"unknown bench {name!r}: take one of {', '.join(BENCHES)}")
    bench: Bench = import_module(f"becausal.bench.{BENCHES[name]}").BENCH
    return bench


def run(
    name: str,
    model: Any,
    *,
    out: str | Path,
    data: str | Path | None = None,
    methods: str | Sequence[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    fill: str = "grey",
    grain: int | None | Literal["default"] = "default",
    max_calls: int | None = None,
    side: int = 4,
    width: int | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    labels: str | Path | Sequence[str] | None = None,
    preprocess: str | Path | None = None,
    resize: str | int | None = None,
    output: str | None = None,
    device: str = "cpu",
    batch_size: int | None = None,
    threads: int | None = None,
    half: bool = False,
) -> Run:
    """Run a bench and write results.csv, summary.json, figures and report.html into `out`.

    model: a spec or a classifier; labels to half: how it is loaded, as in `load_model`. data: the folder of images,
    where the bench takes one. methods: names with commas between, or all; name:key=value gives options. limit: images at
    most, evenly spaced. width: images explained side by side, by default as suits the device; the rows do not depend
    on it. resume: go on with the run in `out`. Raises OptionError for what cannot be.
    """
    bench = load_bench(name)
    if width is not None and width < 1:
        raise OptionError(f"width must be at least 1, not {width}")
    classifier = as_classifier(
        model, labels=labels, preprocess=preprocess, resize=resize, returns=output, device=device, batch_size=batch_size,
        threads=threads, half=half,
    )  # fmt: skip
    chosen, unable = choose_methods(bench.methods if methods is None else methods, classifier)
    settings = Settings(
        bench=name,
        methods=chosen,
        data=None if data is None else Path(data),
        limit=bench.limit if limit is None else limit,
        seed=seed,
        fill=fill,
        grain=grain,
        max_calls=max_calls,
        side=side,
    )
    check_fill(fill)
    record = describe(settings, classifier)
    with Store.begin(Path(out), record, resume=resume) as store:
        try:
            pool = _collect(bench, settings, classifier, store)
        except BecausalError:
            store.discard_if_new()
            raise
        unable |= perform_arms(bench, settings, classifier, pool, store, width, progress)
        rows = bench.complete(in_order(store.rows, bench.arms(settings), pool.samples))
        finished = Run(Path(out), bench, settings, record, rows, pool, bench.summarise(rows), unable)
    write_run(finished, classifier)
    return finished


def describe(settings: Settings, classifier: Classifier) -> dict[str, Any]:
    """All that bears on the rows, as JSON can hold it."""
    info = classifier.info
    plain = asdict(settings) | {"methods": list(settings.methods), "data": _plain(settings.data)}
    del plain["known"]
    loading = {key: value for key, value in info.loading.items() if key not in ("batch_size", "threads")}
    about = {"model": info.spec, "model_sha256": info.sha256, "loading": {k: _plain(v) for k, v in loading.items()}}
    return plain | about | {"device": info.device, "becausal": versions()["becausal"]}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _collect(bench: Bench, settings: Settings, classifier: Classifier, store: Store) -> Pool:
    """The images; on resuming they must be the same."""
    before = next((row for row in store.rows if "_pool" in row), None)
    known = None if before is None else frozenset(before["_pool"])
    pool = bench.collect(replace(settings, known=known), classifier)
    if not pool.samples:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in pool.left_out.items())
        raise OptionError(f"there is no image to explain ({reasons or 'the set is empty'})")
    names = [sample.name for sample in pool.samples]
    if len(set(names)) != len(names):
        raise OptionError("two images of this set have the same name")
    if before is None:
        store.append({"_pool": names, "_left_out": dict(pool.left_out)})
        return pool
    if before["_pool"] != names:
        raise OptionError("the images are not those the run was begun with: give the same data, or another --out")
    return replace(pool, left_out=before["_left_out"])


def write_run(finished: Run, classifier: Classifier) -> None:
    """Write results.csv, summary.json, the figures and the page."""
    from becausal.bench.page import write_page

    folder = finished.folder
    write_whole(folder / "results.csv", table_text(finished.rows))
    write_whole(folder / "summary.json", json.dumps(finished.summary(), indent=2, allow_nan=False) + "\n")
    write_page(finished, classifier)
