"""`becausal batch`: explain many images, in a run that can be killed and resumed."""

import os
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from becausal.core.errors import OptionError
from becausal.interfaces.cli import options, settings
from becausal.interfaces.cli.console import complain, open_console, print_facts, write_json

if TYPE_CHECKING:
    from becausal.batch.inputs import Inputs
    from becausal.batch.pace import Pace
    from becausal.batch.records import Check, Job, Pool
    from becausal.batch.run import Event
    from becausal.batch.store import Store

_WHERE = "Where it runs"
LINES_EVERY = 30.0  # seconds between two lines of progress, where there is no terminal to draw a bar on
SOME_FAILED = 3


@settings.expand_options
def batch(
    *,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES|DIR|GLOB|LIST.txt|COCO.json",
            help="Images, folders, quoted patterns, lists with one path per line, or COCO files; their boxes are truth.",
        ),
    ],
    model: options.Model,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="The run folder, new or to be resumed.")],
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N images; a later start without it does the rest.")
    ] = None,
    retry: Annotated[
        int, typer.Option(metavar="K", help="Try failed images up to K times more, those of earlier starts as well.")
    ] = 0,
    pictures: Annotated[
        bool,
        typer.Option("--pictures", help="Also draw PNGs and a page per image; slow. Later: becausal report --picture."),
    ] = False,
    as_json: options.AsJson = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            rich_help_panel=_WHERE,
            help="Worker processes, each with the model. Default: 1, this process; with --ray: as many as there is room.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="local|auto|ADDRESS",
            rich_help_panel=_WHERE,
            help="Ray workers: in a cluster of this machine's own, in the running one, or in that at an address.",
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float, typer.Option(metavar="G", rich_help_panel=_WHERE, help="GPUs per Ray worker, as 1 or 0.5.")
    ] = 0.0,
    width: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            rich_help_panel=_WHERE,
            help="Images side by side in each worker, to fill batches. Default: 1 on a CPU, as needed on a GPU.",
        ),
    ] = None,
    request: settings.BatchRequest,
    loading: settings.LoadingOptions,
) -> None:
    """Explain many images into a run folder: an index that can be queried, and each explanation's files.

    Start the same command again and it goes on where it was, whatever ended it; other options are refused, but for where
    it runs (workers, Ray, width, batch size, threads), how many (limit) and how often (retry). The answers are those of
    `becausal explain` with the same seed. Ctrl-C finishes the images under way. Exit status: 0; 3 if some images
    failed; 2 if the run could not go on; 130 if it was interrupted.

    **Examples**

    - `becausal batch photos/ --model net.onnx --preprocess imagenet --out run --workers 4`
    - `becausal batch scenes/scenes.json --model bundled --out run --max-calls 500`
    - `becausal batch list.txt --model torchvision:resnet50 --device cuda --ray auto --gpus-per-worker 1 --out run`
    """
    from becausal.batch.inputs import find_inputs
    from becausal.batch.records import Job
    from becausal.batch.store import Store

    if width is None and loading.device == "cpu":
        width = 1
    spot = Spot(workers=workers, ray=ray, gpus=gpus_per_worker, width=width)
    if limit is not None and limit < 1:
        raise OptionError(f"--limit must be at least 1, not {limit}")
    if retry < 0:
        raise OptionError(f"--retry must be 0 or more, not {retry}")
    inputs = find_inputs(images)
    job = Job(
        model=model,
        loading=replace(loading, threads=loading.threads or spot.threads),
        request=request,
        categories=inputs.categories,
        folder=str(Path.cwd()),
        pictures=pictures,
    )
    store = Store(out, inputs, settings_of(job, inputs))
    begun = time.monotonic()
    try:
        is_stopping = _run(store, job, spot, retry=retry, limit=limit, quiet=as_json)
        counts, reasons = store.count(limit), store.reasons(limit)
    finally:
        store.close()
    if as_json:
        write_json({"run": str(out), **counts, "seconds": round(time.monotonic() - begun, 1), "reasons": dict(reasons)})
    else:
        _sum_up(out, counts, reasons, time.monotonic() - begun, is_stopping=is_stopping)
    if is_stopping and counts["waiting"]:
        raise typer.Exit(130)
    if counts["failed"]:
        raise typer.Exit(SOME_FAILED)


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where a run takes place; nothing here bears on the answers."""

    workers: int | None = None
    ray: str | None = None
    gpus: float = 0.0
    width: int | None = 1

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"--workers must be at least 1, not {self.workers}")
        if self.width is not None and self.width < 1:
            raise OptionError(f"--width must be at least 1, not {self.width}")
        if self.gpus < 0:
            raise OptionError(f"--gpus-per-worker must be 0 or more, not {self.gpus:g}")
        if self.gpus and self.ray is None:
            raise OptionError("--gpus-per-worker is for Ray, which shares out GPUs: add --ray local, or leave it out")

    @property
    def threads(self) -> int | None:
        """CPU threads per worker, so that workers do not get in each other's way; None: as the model likes."""
        if self.ray is not None:
            return 1
        return max(1, (os.cpu_count() or 1) // self.workers) if self.workers and self.workers > 1 else None

    def open_pool(self, job: "Job", check: "Check") -> "Pool":
        """The workers for a job."""
        if self.ray is not None:
            from becausal.batch.ray import RayPool

            return RayPool(job, check, address=self.ray, workers=self.workers, gpus=self.gpus, width=self.width)
        from becausal.batch.local import Processes, Single

        if self.workers is None or self.workers == 1:
            return Single(job, check, width=self.width)
        return Processes(job, check, workers=self.workers, width=self.width)


def settings_of(job: "Job", inputs: "Inputs") -> dict[str, Any]:
    """All that bears on the answers, by the names of the options: a run goes on with the same and nothing else."""
    from becausal import __version__

    loading = dict.fromkeys(vars(settings.Loading())) | job.loading.record()
    return {
        "model": job.model,
        **job.request.record(),
        **{name: value for name, value in loading.items() if name not in ("batch_size", "threads")},
        "pictures": job.pictures,
        "becausal": __version__,
        "started in": job.folder if inputs.has_relative_paths else None,
    }


def _run(store: "Store", job: "Job", spot: Spot, *, retry: int, limit: int | None, quiet: bool) -> bool:
    """Explain what is left; says whether it was asked to stop."""
    from becausal.batch.pace import Pace
    from becausal.batch.run import run_batch

    counts = store.count(limit)
    if not counts["waiting"] and not (retry and counts["failed"]):
        return False
    options.check_device(job.loading.device)
    pool = spot.open_pool(job, store.agree)
    pace = Pace(sum(counts.values()), sum(counts.values()) - counts["waiting"])
    try:
        with Stopper() as stopper, Board(pace, quiet=quiet) as board:  # now: Ray has set handlers of its own
            run_batch(store, pool, retry=retry, limit=limit, watch=board, is_stopping=lambda: stopper.is_stopping)
        return stopper.is_stopping
    finally:
        pool.close()


def _sum_up(out: Path, counts: dict[str, int], reasons: list[tuple[str, int]], seconds: float, *, is_stopping: bool) -> None:
    from becausal.batch.pace import say_duration

    facts: list[tuple[str, Any]] = [("explained", f"{counts['done']:,}")]
    if counts["failed"]:
        facts.append(("failed", f"{counts['failed']:,}"))
        facts += [("", f"{count:,} x {reason}") for reason, count in reasons[:5]]
        if len(reasons) > 5:
            facts.append(("", f"and {len(reasons) - 5:,} other reasons: SELECT error, count(*) FROM images GROUP BY error"))
    if counts["waiting"]:
        facts.append(("waiting", f"{counts['waiting']:,}; the same command goes on with them"))
    facts += [("this start", say_duration(seconds)), ("next", f"becausal report {out}")]
    console = open_console()
    console.print(f"{out}: {'stopped' if is_stopping and counts['waiting'] else 'complete'}")
    print_facts(console, facts)


class Stopper(AbstractContextManager["Stopper"]):
    """Turns the first Ctrl-C, or SIGTERM, into a wish to stop after the images under way; the second one is obeyed."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():  # the only one that may handle signals
            self._before = {n: signal.signal(n, self._stop) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.is_stopping:
            raise KeyboardInterrupt
        self.is_stopping = True
        complain("finishing the images under way; Ctrl-C again to drop them", kind="stopping")


class Board(AbstractContextManager["Board"]):
    """Progress on stderr: a bar on a terminal, else a line now and then; the first few failures as they come."""

    def __init__(self, pace: "Pace", *, quiet: bool) -> None:
        self._pace, self._quiet = pace, quiet
        self._failures = 0
        self._bar = None if quiet else _make_bar()
        self._task: Any = None
        self._spoken = time.monotonic()

    def __enter__(self) -> "Board":
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self._pace.total, completed=self._pace.done, said="starting")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: "Event") -> None:
        """Take note of an image that was dealt with."""
        from becausal.batch.pace import say_pace

        self._pace.step()
        if event.error is not None:
            self._failures += 1
        if self._quiet:
            return
        said = say_pace(self._pace) + (f", {self._failures:,} failed" if self._failures else "")
        if self._bar is not None:
            self._bar.update(self._task, completed=self._pace.done, said=said)
        elif time.monotonic() - self._spoken >= LINES_EVERY:
            self._spoken = time.monotonic()
            print(f"becausal: {said}", file=sys.stderr, flush=True)


def _make_bar() -> Any:
    """A bar on stderr; None where that is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn

    console = open_console(stderr=True)
    if not console.is_terminal:
        return None
    return Progress(
        BarColumn(bar_width=30), TextColumn("{task.fields[said]}", markup=False), console=console, transient=True
    )
