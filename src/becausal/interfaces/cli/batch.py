"""`becausal batch`: explain many images, in a run that can be interrupted and resumed."""

import os
import signal
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import OptionError
from becausal.core.options import option
from becausal.core.request import COSTLY_CALLS, Request
from becausal.core.text import one_line
from becausal.interfaces.cli import options
from becausal.interfaces.cli.console import complain, open_console, print_facts, write_json
from becausal.interfaces.cli.explain import describe_limit
from becausal.interfaces.cli.progress import InterruptHandler, ProgressBar
from becausal.models.loading import Loading

if TYPE_CHECKING:
    from becausal.batch.index import FailureReason
    from becausal.batch.settings import BatchJob
    from becausal.batch.store import BatchStore
    from becausal.batch.work import WorkerPool

SOME_FAILED = 3  # exit status


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a run takes place; the results do not depend on it."""

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


PlacementOptions = Annotated[Placement, options.group_of(Placement, "Where to run")]
Images = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGES|DIR|GLOB|LIST.txt|COCO.json",
        help="Image files, folders, quoted patterns, text files with one path per line, or COCO files, whose boxes are "
        "used as ground truth.",
    ),
]
RunFolder = Annotated[Path, options.out_option("Run folder, new or to be resumed.", "RUN")]


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What a start of a run does."""

    limit: int | None = option(None, "Explain only the first N images; run again without it for the rest.", metavar="N")
    retry: int = option(0, "Try failed images, including those of earlier starts, up to K more times.", metavar="K")
    render: bool = option(
        False,
        "Also render PNG figures and a report page for every image (slow). For one image, use becausal report --image.",
    )

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"--limit must be at least 1, not {self.limit}")
        if self.retry < 0:
            raise OptionError(f"--retry must be 0 or more, not {self.retry}")


@options.expand_options
def batch(
    *,
    images: Images,
    model: options.Model,
    out: RunFolder,
    start: Annotated[StartOptions, options.group_of(StartOptions, options.OWN)],
    every_box: options.EveryBox = False,
    as_json: options.AsJson = False,
    placement: PlacementOptions,
    request: options.RequestOptions,
    loading: options.LoadingOptions,
) -> int:
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
    if every_box:
        options.check_every_box(request)
        if placement.width not in (None, 1):
            raise OptionError("--width is for single boxes: with --all, the boxes of an image come one after the other")
    job = make_job(model, request, loading, placement, render=start.render, every_box=every_box)
    summary = start_run(images, job, out, placement, start, quiet=as_json)
    if as_json:
        write_json({"run": str(out), **summary.record()})
    else:
        print_batch(out, summary)
    return 130 if summary.was_stopped else SOME_FAILED if summary.counts["failed"] else 0


def make_job(
    model: str, request: Request, loading: Loading, placement: Placement, *, render: bool = False, every_box: bool = False
) -> "BatchJob":
    """Make the job of a run in the current folder."""
    from becausal.batch.settings import BatchJob

    threads = loading.threads
    if placement.ray is not None:
        threads = threads or 1
    elif placement.workers and placement.workers > 1:  # they share the cores
        threads = threads or max(1, (os.cpu_count() or 1) // placement.workers)
    loading, folder = replace(loading, threads=threads), str(Path.cwd())
    return BatchJob(model=model, loading=loading, request=request, folder=folder, render=render, every_box=every_box)


def start_run(
    images: list[str], job: "BatchJob", out: Path, placement: Placement, start: StartOptions, *, quiet: bool
) -> "BatchSummary":
    """Start a run, or resume it, and return its state at the end; the categories of the job come from the images."""
    from becausal.batch.inputs import find_inputs
    from becausal.batch.settings import settings_of
    from becausal.batch.store import BatchStore

    if placement.width is None and job.loading.device == "cpu":
        placement = replace(placement, width=1)
    inputs = find_inputs(images)
    job = replace(job, categories=inputs.categories)
    with closing(BatchStore(out, inputs, settings_of(job, inputs))) as store:
        for message in store.messages:
            complain(message, kind="note")
        started, is_stopping, limit = time.monotonic(), False, start.limit
        store.set_limit(limit)
        counts = store.count(limit)
        if left := counts["waiting"] + (counts["failed"] if start.retry else 0):
            if job.model.startswith("chat:"):  # each call costs money or seconds
                most = job.request.max_calls or COSTLY_CALLS
                complain(describe_limit("the server", most, job.loading.endpoint, left), kind="note")
            is_stopping = run_images(store, job, placement, start, quiet=quiet)
            counts = store.count(limit)
        return BatchSummary(
            total=store.count(),
            counts=counts,
            reasons=store.reasons(limit),
            notes=tuple(store.notes),
            limit=limit,
            seconds=time.monotonic() - started,
            was_stopped=is_stopping and counts["waiting"] > 0,
            boxes=store.count_boxes(),
        )


def run_images(store: "BatchStore", job: "BatchJob", placement: Placement, start: StartOptions, *, quiet: bool) -> bool:
    """Explain the images that are left; returns whether the run was interrupted."""
    from becausal.batch.pools import InProcessPool, ProcessPool
    from becausal.batch.run import ProgressMeter, run_batch
    from becausal.batch.work import TaskDone, TaskFailed

    counts = store.count(start.limit)
    meter = ProgressMeter(sum(counts.values()), sum(counts.values()) - counts["waiting"])
    failures, check = 0, store.check_model
    pool: WorkerPool
    if placement.ray is not None:
        from becausal.batch.ray import RayPool

        pool = RayPool(
            job, check, address=placement.ray, workers=placement.workers, gpus=placement.gpus, width=placement.width
        )
    elif placement.workers is not None:
        pool = ProcessPool(job, check, workers=placement.workers, width=placement.width)
    else:
        pool = InProcessPool(job, check, width=placement.width)

    def show(result: TaskDone | TaskFailed) -> None:
        nonlocal failures
        meter.step()
        failures += isinstance(result, TaskFailed)
        failed = f", {failures:,} failed" if failures else ""
        bar.update(meter.done, meter.total, f"{meter}{failed}")

    message = "finishing the images in progress; press Ctrl-C again to discard them"
    with (
        closing(pool),
        InterruptHandler(message, signal.SIGINT, signal.SIGTERM) as interrupts,  # after Ray, which sets its own handlers
        ProgressBar(quiet=quiet, has_log=True) as bar,
    ):
        bar.update(meter.done, meter.total, "starting")
        run_batch(
            store, pool, retry=start.retry, limit=start.limit, on_event=show, is_stopping=lambda: interrupts.is_stopping
        )
    return interrupts.is_stopping


@dataclass(frozen=True)
class BatchSummary:
    """The state of a run at the end of a start."""

    total: dict[str, int]  # numbers of images by state
    counts: dict[str, int]  # the same for the first `limit` images
    reasons: "list[FailureReason]"  # why images failed
    notes: tuple[str, ...]  # what the model had to assume
    limit: int | None
    seconds: float
    was_stopped: bool
    boxes: int | None  # that were explained; None where one of each image is

    def record(self) -> dict[str, Any]:
        """The summary as JSON can hold it."""
        return {
            **self.counts,
            "images": sum(self.total.values()),
            **({} if self.boxes is None else {"boxes": self.boxes}),
            "limit": self.limit,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
            "reasons": {reason.text: reason.count for reason in self.reasons},
        }


def print_batch(out: Path, summary: BatchSummary) -> None:
    """Print how many images were explained, what was assumed, why images failed, and what to do next."""
    from rich.text import Text

    from becausal.batch.run import format_duration
    from becausal.batch.summaries import describe_completion
    from becausal.render.numbers import format_count

    counts, total, reasons = summary.counts, summary.total, summary.reasons
    facts: list[tuple[str, str | Text]] = [("note", Text(one_line(note), "not dim yellow")) for note in summary.notes]
    boxes = "" if summary.boxes is None else f" images, {format_count(summary.boxes, 'box')}"
    facts.append(("explained", f"{total['done']:,} of {sum(total.values()):,}{boxes}"))
    if counts["failed"]:
        facts.append(("failed", f"{counts['failed']:,}"))
        facts += [("", f"{reason.count:,} x {reason}") for reason in reasons[:5]]
        if len(reasons) > 5:
            facts.append(("", f"and {len(reasons) - 5:,} other reasons, which the page of becausal report lists"))
    is_limited = total["waiting"] > 0 and not counts["waiting"]
    if total["waiting"]:
        how = "run the same command without --limit for the rest" if is_limited else "run the same command again to continue"
        facts.append(("waiting", f"{total['waiting']:,}; {how}"))
    facts += [("this start", format_duration(summary.seconds)), ("next", f"becausal report {out}")]
    console = open_console()
    stopped = "stopped, " if summary.was_stopped else ""
    console.print(f"{out}: {stopped}{describe_completion(total, summary.limit if is_limited else None)}")
    print_facts(console, facts)
