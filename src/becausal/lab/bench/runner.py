"""Running a bench: select images and methods, compute the rows, write tables, figures and the page."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from becausal.api import Request
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, OptionError
from becausal.core.files import write_file
from becausal.core.version import versions
from becausal.lab.bench.base import Bench, BenchRun
from becausal.lab.bench.execution import BenchProgress, run_arms, sort_rows
from becausal.lab.bench.plan import BenchSettings, ImageSelection
from becausal.lab.bench.selection import check_fills, select_methods
from becausal.lab.bench.storage import RowStore, table_text
from becausal.models import as_classifier

#: All benches; each is a module of this package.
BENCHES = (
    "photobombing",
    "roaming-panda",
    "occlusion",
    "scenes",
    "fills",
    "exact",
    "convergence",
    "misclassified",
    "faithfulness",
    "sanity",
)


def load_bench(name: str) -> Bench:
    """The bench with this name.

    Raises:
        OptionError: There is none.
    """
    if name not in BENCHES:
        raise OptionError(f"unknown bench {name!r}: choose one of {', '.join(BENCHES)}")
    bench: Bench = import_module(f"becausal.lab.bench.{name.replace('-', '_')}").BENCH
    return bench


def run(
    name: str,
    model: Any,
    *,
    out: str | Path,
    data: str | Path | None = None,
    methods: str | Sequence[str] | None = None,
    limit: int | None = None,
    request: Request | None = None,
    side: int = 4,
    width: int | None = None,
    resume: bool = False,
    progress: Callable[[BenchProgress], None] | None = None,
) -> BenchRun:
    """Run a bench; writes results.csv, summary.json, figures and report.html.

    Args:
        name: One of `BENCHES`.
        model: A classifier, e.g. from `becausal.load_model`, or anything that `as_classifier` takes.
        out: Folder to write to; new or empty, unless a run is resumed.
        data: Folder of images, for benches that take one.
        methods: Names separated by commas, or "all"; name:key=value sets options. Default: those of the bench.
        limit: Maximum number of images, evenly spaced. Default: that of the bench.
        request: What is asked of each explanation, with each of `methods`; without a confidence, the smallest set.
        side: Side of the tiny images of the bench `exact`.
        width: Number of images explained in parallel, by default chosen for the device; does not affect the rows.
        resume: Continue the run in `out`.
        progress: Called after each explanation.

    Returns:
        The finished run.

    Raises:
        OptionError: The options do not fit the bench, the model, or the run that is resumed.
        OutputError: A file cannot be written.
    """
    bench = load_bench(name)
    request = request or Request()
    if width is not None and width < 1:
        raise OptionError(f"width must be at least 1, not {width}")
    bench.check_request(request)
    check_fills(request)
    classifier = as_classifier(model)
    chosen, unable = select_methods(bench.methods if methods is None else methods, classifier, request)
    folder = None if data is None else Path(data)
    settings = BenchSettings(
        bench=name, methods=chosen, data=folder, limit=bench.limit if limit is None else limit, request=request, side=side
    )
    record = describe(settings, classifier)
    with RowStore.open(Path(out), record, resume=resume) as store:
        try:
            selection = _select_images(bench, settings, classifier, store)
        except BecausalError:
            store.discard_if_new()
            raise
        unable |= run_arms(bench, settings, classifier, selection, store, width, progress)
        rows = bench.postprocess(sort_rows(store.rows, bench.arms(settings), selection.samples))
        finished = BenchRun(Path(out), bench, settings, record, rows, selection, bench.summarise(rows), unable)
    write_run(finished, classifier)
    return finished


def describe(settings: BenchSettings, classifier: Classifier) -> dict[str, Any]:
    """Everything that determines the rows, in a form that JSON can hold."""
    info = classifier.info
    return {
        "bench": settings.bench,
        "methods": list(settings.methods),
        "data": None if settings.data is None else str(settings.data),
        "limit": settings.limit,
        "side": settings.side,
        "request": settings.request.record(),
        "model": info.spec,
        "model_sha256": info.sha256,
        "loading": dict(info.loading),
        "device": info.device,
        "becausal": versions()["becausal"],
    }


def _select_images(bench: Bench, settings: BenchSettings, classifier: Classifier, store: RowStore) -> ImageSelection:
    """The images; in a resumed run they must be the same."""
    before = next((row for row in store.rows if "_pool" in row), None)
    known = None if before is None else frozenset(before["_pool"])
    selection = bench.select(replace(settings, known=known), classifier)
    if not selection.samples:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in selection.left_out.items())
        raise OptionError(f"there is no image to explain ({reasons or 'the dataset is empty'})")
    names = [sample.name for sample in selection.samples]
    if len(set(names)) != len(names):
        raise OptionError("two images of this dataset have the same name: rename one of them")
    if before is None:
        store.append({"_pool": names, "_left_out": dict(selection.left_out)})
        return selection
    if before["_pool"] != names:
        raise OptionError("the images are not those of the run: give the same data, or another --out")
    return replace(selection, left_out=before["_left_out"])


def write_run(finished: BenchRun, classifier: Classifier) -> None:
    """Write results.csv, summary.json, the figures and the page."""
    from becausal.lab.bench.page import write_page

    summary = json.dumps(finished.summary(), indent=2, allow_nan=False, default=str) + "\n"
    write_file(finished.folder / "results.csv", table_text(finished.rows).encode())
    write_file(finished.folder / "summary.json", summary.encode())
    write_page(finished, classifier)
