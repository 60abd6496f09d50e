"""`becausal batch`: explain many images, in a run that can be interrupted and resumed."""

import os
import signal
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import OptionError
from becausal.core.options import option
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import complain, open_console, print_facts, write_json
from becausal.interfaces.cli.progress import BatchProgress, InterruptHandler, ProgressBar
from becausal.models.loading import Loading

if TYPE_CHECKING:
    from becausal.batch.records import BatchJob, ModelCheck, WorkerPool
    from becausal.batch.store import BatchStore

SOME_FAILED = 3  # exit status


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a run takes place; the results do not depend on it.

    Attributes:
        workers: Number of worker processes; None for this process, or for as many as Ray has room for.
        ray: Ray cluster to use; None for no Ray.
        gpus: GPUs per Ray worker.
        width: Images explained at the same time by each worker; None for as many as the device needs.
    """

    workers: int | None = option(
        None,
        "Number of worker processes, each with its own copy of the model; an image that makes one crash is failed, and the "
        "run goes on. Default: none, all in this process; with --ray, as many as fit.",
        metavar="N",
    )
    ray: str | None = option(
        None,
        "Use Ray workers: local starts a cluster on this machine, auto uses the running one, or give an address.",
        metavar="local|auto|ADDRESS",
    )
    gpus: float = option(0.0, "GPUs per Ray worker, e.g. 1 or 0.5.", metavar="G", flag="--gpus-per-worker")
    width: int | None = option(
        None,
        "Images explained at the same time by each worker, to fill batches. Default: 1 on a CPU, automatic on a GPU.",
        metavar="N",
    )

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"--workers must be at least 1, not {self.workers}")
        if self.width is not None and self.width < 1:
            raise OptionError(f"--width must be at least 1, not {self.width}")
        if self.gpus < 0:
            raise OptionError(f"--gpus-per-worker must be 0 or more, not {self.gpus:g}")
        if self.gpus and self.ray is None:
            raise OptionError("--gpus-per-worker is for Ray workers: add --ray local, or leave it out")

    @property
    def threads(self) -> int | None:
        """CPU threads per worker, so that workers share the cores; None for the model's own choice."""
        if self.ray is not None:
            return 1
        return max(1, (os.cpu_count() or 1) // self.workers) if self.workers and self.workers > 1 else None

    def open_pool(self, job: "BatchJob", check: "ModelCheck") -> "WorkerPool":
        """Start the workers for a job."""
        if self.ray is not None:
            from becausal.batch.ray import RayPool

            return RayPool(job, check, address=self.ray, workers=self.workers, gpus=self.gpus, width=self.width)
        from becausal.batch.local import InProcessPool, ProcessPool

        if self.workers is None:
            return InProcessPool(job, check, width=self.width)
        return ProcessPool(job, check, workers=self.workers, width=self.width)


PlacementOptions = Annotated[
    Placement,
    options.OptionGroup(partial(options.build_record, Placement), options.options_of(Placement, "Where to run")),
]


Images = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGES|DIR|GLOB|LIST.txt|COCO.json",
        help="Image files, folders, quoted patterns, text files with one path per line, or COCO files, whose boxes are "
        "used as ground truth.",
    ),
]
RunFolder = Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Run folder, new or to be resumed.")]
Limit = Annotated[
    int | None, typer.Option(metavar="N", help="Explain only the first N images; run again without it for the rest.")
]
Retry = Annotated[
    int, typer.Option(metavar="K", help="Try failed images, including those of earlier starts, up to K more times.")
]
Render = Annotated[
    bool,
    typer.Option(
        "--render",
        help="Also render PNG figures and a report page for every image (slow). For one image, use becausal report --image.",
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="Make a new index from the explanations in the run folder, if index.sqlite was lost or damaged, then continue.",
    ),
]


@options.expand_options
def batch(
    *,
    images: Images,
    model: options.Model,
    out: RunFolder,
    limit: Limit = None,
    retry: Retry = 0,
    render: Render = False,
    rebuild: Rebuild = False,
    every_box: options.EveryBox = False,
    as_json: options.AsJson = False,
    placement: PlacementOptions,
    request: options.RequestOptions,
    loading: options.LoadingOptions,
) -> None:
    """Explain many images into a run folder.

    The folder has an SQLite index of all images and the files of each explanation. To resume a run, give the same
    command again; only --limit, --retry, --batch-size, --threads and the options under "Where to run" may change. Images
    that were replaced since are explained again. Press Ctrl-C to finish the images in progress and stop. Exit status: 0 if
    all images were explained, 3 if some failed, 2 if the run failed, 130 if it was interrupted.

    **Examples**

    - `becausal batch photos/ --model net.onnx --preprocess imagenet --out run --workers 4`
    - `becausal batch scenes/scenes.json --model bundled --out run --max-calls 500`
    - `becausal batch list.txt --model torchvision:resnet50 --device cuda --ray auto --gpus-per-worker 1 --out run`
    - `becausal batch streets/ --model detect:yolo.onnx --all --out run`
    """
    if limit is not None and limit < 1:
        raise OptionError(f"--limit must be at least 1, not {limit}")
    if retry < 0:
        raise OptionError(f"--retry must be 0 or more, not {retry}")
    if every_box:
        options.check_every_box(request)
        if placement.width not in (None, 1):
            raise OptionError("--width is for single boxes: with --all, the boxes of an image come one after the other")
    job = make_job(model, request, loading, placement, render=render, every_box=every_box)
    summary = start_run(images, job, out, placement, limit=limit, retry=retry, rebuild=rebuild, quiet=as_json)
    if as_json:
        write_json({"run": str(out), **summary.record()})
    else:
        print_batch(out, summary)
    if summary.was_stopped:
        raise typer.Exit(130)
    if summary.counts["failed"]:
        raise typer.Exit(SOME_FAILED)


def make_job(
    model: str,
    request: Request,
    loading: Loading,
    placement: Placement,
    *,
    render: bool = False,
    every_box: bool = False,
) -> "BatchJob":
    """Make the job of a run in the current folder."""
    from becausal.batch.records import BatchJob

    loading = replace(loading, threads=loading.threads or placement.threads)
    folder = str(Path.cwd())
    return BatchJob(model=model, loading=loading, request=request, folder=folder, render=render, every_box=every_box)


def start_run(
    images: list[str],
    job: "BatchJob",
    out: Path,
    placement: Placement,
    *,
    limit: int | None = None,
    retry: int = 0,
    rebuild: bool = False,
    quiet: bool = False,
) -> "BatchSummary":
    """Start a run, or resume it, and return its state at the end; the categories of the job come from the images."""
    from becausal.batch.inputs import find_inputs
    from becausal.batch.settings import settings_of
    from becausal.batch.store import BatchStore

    if placement.width is None and job.loading.device == "cpu":
        placement = replace(placement, width=1)
    inputs = find_inputs(images)
    job = replace(job, categories=inputs.categories)
    with closing(BatchStore(out, inputs, settings_of(job, inputs), rebuild=rebuild)) as store:
        for message in store.messages:
            complain(message, kind="note")
        started = time.monotonic()
        is_stopping = run_images(store, job, placement, retry=retry, limit=limit, quiet=quiet)
        counts, reasons = store.count(limit), store.reasons(limit)
        was_stopped = is_stopping and counts["waiting"] > 0
        seconds = time.monotonic() - started
        notes, boxes = tuple(store.notes), store.count_boxes()
        return BatchSummary(store.count(), counts, reasons, notes, limit, seconds, was_stopped, boxes)


def run_images(
    store: "BatchStore", job: "BatchJob", placement: Placement, *, retry: int, limit: int | None, quiet: bool
) -> bool:
    """Explain the images that are left; returns whether the run was interrupted."""
    from becausal.batch.run import ProgressMeter, run_batch

    store.set_limit(limit)
    counts = store.count(limit)
    if not counts["waiting"] and not (retry and counts["failed"]):
        return False
    meter = ProgressMeter(sum(counts.values()), sum(counts.values()) - counts["waiting"])
    message = "finishing the images in progress; press Ctrl-C again to discard them"
    with (
        closing(placement.open_pool(job, store.check_model)) as pool,
        InterruptHandler(message, signal.SIGINT, signal.SIGTERM) as interrupts,  # after Ray, which sets its own handlers
        ProgressBar(quiet=quiet, has_log=True) as bar,
    ):
        progress = BatchProgress(bar, meter)
        run_batch(store, pool, retry=retry, limit=limit, on_event=progress, is_stopping=lambda: interrupts.is_stopping)
    return interrupts.is_stopping


@dataclass(frozen=True)
class BatchSummary:
    """The state of a run at the end of a start.

    Attributes:
        total: Numbers of images by state.
        counts: The same for the first `limit` images.
        reasons: Why images failed, with counts.
        notes: What the model had to assume.
        limit: Number of images of this start, None for all.
        seconds: Duration of this start.
        was_stopped: Whether it was interrupted before all images were tried.
        boxes: Number of boxes that were explained; None where one of each image is.
    """

    total: dict[str, int]
    counts: dict[str, int]
    reasons: list[tuple[str, int]]
    notes: tuple[str, ...]
    limit: int | None
    seconds: float
    was_stopped: bool = False
    boxes: int | None = None

    def record(self) -> dict[str, Any]:
        """The summary as JSON can hold it."""
        return {
            **self.counts,
            "images": sum(self.total.values()),
            **({} if self.boxes is None else {"boxes": self.boxes}),
            "limit": self.limit,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
            "reasons": dict(self.reasons),
        }


def print_batch(out: Path, summary: BatchSummary) -> None:
    """Print how many images were explained, what was assumed, why images failed, and what to do next."""
    from rich.text import Text

    from becausal.batch.overview import describe_completion
    from becausal.batch.run import format_duration
    from becausal.render.wording import format_count

    counts, total, reasons = summary.counts, summary.total, summary.reasons
    facts: list[tuple[str, str | Text]] = [("note", Text(one_line(note), "not dim yellow")) for note in summary.notes]
    boxes = "" if summary.boxes is None else f" images, {format_count(summary.boxes, 'box')}"
    facts.append(("explained", f"{total['done']:,} of {sum(total.values()):,}{boxes}"))
    if counts["failed"]:
        facts.append(("failed", f"{counts['failed']:,}"))
        facts += [("", f"{count:,} x {reason}") for reason, count in reasons[:5]]
        if len(reasons) > 5:
            facts.append(("", f"and {len(reasons) - 5:,} other reasons: SELECT error, count(*) FROM images GROUP BY error"))
    is_limited = total["waiting"] > 0 and not counts["waiting"]
    if total["waiting"]:
        how = "run the same command without --limit for the rest" if is_limited else "run the same command again to continue"
        facts.append(("waiting", f"{total['waiting']:,}; {how}"))
    facts += [("this start", format_duration(summary.seconds)), ("next", f"becausal report {out}")]
    console = open_console()
    stopped = "stopped, " if summary.was_stopped else ""
    console.print(f"{out}: {stopped}{describe_completion(total, summary.limit if is_limited else None)}")
    print_facts(console, facts)
