"""Stress tests of `becausal batch`: kills at random times, one worker and two, memory over many images.

    python benchmarks/scale.py kills  --scenes 2000 --kills 30 --workers 2
    python benchmarks/scale.py speed  --scenes 200 --ray
    python benchmarks/scale.py memory --scenes 10000 --max-calls 20
    python benchmarks/scale.py driver --scenes 5000

Each writes a JSON file to benchmarks/results/ and prints it. The scenes are generated, the model is the bundled one, with
one thread per worker. The load average is recorded with the times: on a busy machine two workers show little.
"""

import argparse
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from becausal.batch.index import folder_of
from becausal.scenes import make_scene

RESULTS = Path(__file__).parent / "results"
SAME = (
    "id, image, state, sha256, label, label_id, confidence, size, pixels, pieces, alone, sufficient, necessary, "
    "minimal_grain, stopped_by, calls, inside, by_chance, note_code, note, error"
)


def command(images: Path, run: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "becausal", "batch", str(images), "--model", "bundled", "--out", str(run), *more]


def write_images(folder: Path, count: int) -> Path:
    """The images of `count` scenes, without their masks, and a COCO file with the objects' boxes."""
    from PIL import Image

    folder.mkdir()
    images, annotations = [], []
    for k in range(count):
        scene = make_scene(k)
        Image.fromarray(scene.image).save(folder / f"{k:06d}.png")
        images.append({"id": k, "file_name": f"{k:06d}.png", "width": scene.size, "height": scene.size})
        if scene.visible.any():
            rows, columns = np.flatnonzero(scene.visible.any(axis=1)), np.flatnonzero(scene.visible.any(axis=0))
            top, left = int(rows[0]), int(columns[0])
            box = [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]
            annotations.append({"id": k, "image_id": k, "category_id": scene.label_index, "bbox": box})
    from becausal.scenes import LABELS

    names = [{"id": i, "name": name} for i, name in enumerate(LABELS)]
    path = folder / "boxes.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": names}))
    return path


def rows_of(run: Path) -> list[tuple[object, ...]]:
    with sqlite3.connect(run / "index.sqlite") as index:
        return index.execute(f"SELECT {SAME} FROM images ORDER BY id").fetchall()


def arrays_differ(one: Path, other: Path, number: int) -> bool:
    """Whether the arrays of an image differ in two runs."""
    with np.load(folder_of(one, number) / "arrays.npz") as a, np.load(folder_of(other, number) / "arrays.npz") as b:
        return a.files != b.files or any(not np.array_equal(a[name], b[name]) for name in a.files)


def compare(one: Path, other: Path) -> dict[str, int]:
    """How many rows and arrays differ between two runs."""
    ours, theirs = rows_of(one), rows_of(other)
    done = [row[0] for row in ours if row[2] == "done"]
    return {
        "rows": len(ours),
        "done": len(done),
        "rows_that_differ": sum(a != b for a, b in zip(ours, theirs, strict=True)),
        "arrays_that_differ": sum(arrays_differ(one, other, int(str(number))) for number in done),
    }


def count_finished(run: Path) -> int:
    try:
        with sqlite3.connect(f"file:{run / 'index.sqlite'}?mode=ro", uri=True) as index:
            return index.execute("SELECT count(*) FROM images WHERE state != 'waiting'").fetchone()[0]
    except sqlite3.OperationalError:  # killed before there was an index
        return 0


def kills(place: Path, options: argparse.Namespace) -> dict[str, object]:
    """Compare an uninterrupted run with one that was killed with SIGKILL at random times and resumed each time."""
    images = write_images(place / "images", options.scenes)
    more = ["--workers", str(options.workers)] + (["--max-calls", str(options.max_calls)] if options.max_calls else [])
    begun = time.monotonic()
    calm = subprocess.run(command(images, place / "calm", *more), check=False).returncode
    calm_seconds = time.monotonic() - begun
    draw = random.Random(options.seed)
    # Spread over the whole run, so that kills hit loading, searching and writing.
    moments, begun = [], time.monotonic()
    while len(moments) < options.kills:
        process = subprocess.Popen(command(images, place / "killed", *more), start_new_session=True)
        rest = calm_seconds * (1 - count_finished(place / "killed") / options.scenes)
        wait = draw.uniform(0, 1.6 * rest / (options.kills - len(moments) + 1) + 2)
        try:
            process.wait(timeout=wait)
            break  # it finished before all kills were done
        except subprocess.TimeoutExpired:
            if options.only_driver:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            moments.append({"after_seconds": round(wait, 2), "dealt_with": count_finished(place / "killed")})
    status = subprocess.run(command(images, place / "killed", *more), check=False).returncode
    return {
        "scenes": options.scenes,
        "kills": len(moments),
        "exit": [calm, status],
        "calm_seconds": round(calm_seconds, 1),
        "killed_seconds": round(time.monotonic() - begun, 1),
        "moments": moments,
        **compare(place / "calm", place / "killed"),
    }


def speed(place: Path, options: argparse.Namespace) -> dict[str, object]:
    """The same images with one worker and with two, one thread each, timed from the first to the last result."""
    images = write_images(place / "images", options.scenes)
    budget = ["--max-calls", str(options.max_calls)] if options.max_calls else []
    found: dict[str, object] = {"scenes": options.scenes}
    ways = {"processes": [], **({"ray": ["--ray", "local"]} if options.ray else {})}
    for name, way in ways.items():
        for workers in ("1", "2"):
            run = place / f"{name}{workers}"
            load, spent = os.getloadavg()[0], cpu_seconds()
            subprocess.run(command(images, run, "--workers", workers, "--threads", "1", *budget, *way), check=False)
            found[f"{name}_{workers}"] = {
                "pictures_per_second": rate_of(run),
                "load_before": round(load, 2),
                "cpu_seconds": round(cpu_seconds() - spent, 1),  # without Ray's workers, which are not child processes
            }
        one, two = found[f"{name}_1"], found[f"{name}_2"]
        found[f"{name}_ratio"] = round(two["pictures_per_second"] / one["pictures_per_second"], 2)  # type: ignore[index]
        found[f"{name}_same"] = compare(place / f"{name}1", place / f"{name}2")
    if options.ray:
        found["ray_same_as_local"] = compare(place / "processes1", place / "ray2")
    return found


def cpu_seconds() -> float:
    """CPU time of all child processes that have ended; it does not depend on other load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rate_of(run: Path) -> float:
    """Images per second between the first and the last result; the index has a resolution of one second."""
    query = "SELECT count(*), (julianday(max(finished)) - julianday(min(finished))) * 86400 FROM images"
    with sqlite3.connect(run / "index.sqlite") as index:
        count, seconds = index.execute(query).fetchone()
    return round((count - 1) / max(seconds, 1.0), 3)


def resident(pid: int) -> int:
    """Resident memory of a process and its children, in bytes."""
    total = 0
    pages = os.sysconf("SC_PAGE_SIZE")
    todo = [pid]
    while todo:
        number = todo.pop()
        try:
            total += int(Path(f"/proc/{number}/statm").read_text().split()[1]) * pages
            for task in Path(f"/proc/{number}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def memory(place: Path, options: argparse.Namespace) -> dict[str, object]:
    """Memory of the driver and the workers during a long run, then of the report."""
    images = write_images(place / "images", options.scenes)
    run = place / "run"
    more = ["--max-calls", str(options.max_calls or 20), "--workers", str(options.workers)]
    begun, samples = time.monotonic(), []
    with subprocess.Popen(command(images, run, *more)) as process:
        while process.poll() is None:
            samples.append((count_finished(run), resident(process.pid)))
            time.sleep(1.0)
    seconds = time.monotonic() - begun
    steps = [int(options.scenes * share) for share in (0.1, 0.25, 0.5, 0.75, 0.95)]
    near = {step: min(samples, key=lambda pair: abs(pair[0] - step))[1] for step in steps}
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-m", "becausal", "report", str(run)]) as process:
        most = 0
        while process.poll() is None:
            most = max(most, resident(process.pid))
            time.sleep(0.05)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    return {
        "scenes": options.scenes,
        "workers": options.workers,
        "max_calls": options.max_calls or 20,
        "seconds": round(seconds, 1),
        "megabytes_at": {str(step): round(value / 1e6, 1) for step, value in near.items()},
        "report": {
            "seconds": round(time.monotonic() - begun, 1),
            "megabytes": round(most / 1e6, 1),
            "page_megabytes": round((run / "report.html").stat().st_size / 1e6, 2),
        },
        "kilobytes_per_picture": round(size / options.scenes / 1e3, 1),
    }


def driver(place: Path, options: argparse.Namespace) -> dict[str, object]:
    """How many results per second one driver can store: the same explanation, written repeatedly."""
    from dataclasses import replace

    from becausal.batch.inputs import InputItem, Inputs
    from becausal.batch.pools import InProcessPool
    from becausal.batch.settings import BatchJob, settings_of
    from becausal.batch.store import BatchStore
    from becausal.batch.work import TaskDone
    from becausal.models import Loading

    write_images(place / "images", 1)
    inputs = Inputs([InputItem("images/000000.png")] * options.scenes)
    job = BatchJob(model="bundled", loading=Loading(threads=1), folder=str(place))
    store = BatchStore(place / "run", inputs, settings_of(job, inputs))
    begun = time.monotonic()
    result = next(iter(InProcessPool(job, store.check_model).results(store.tasks("waiting"))))
    alone = time.monotonic() - begun
    if not isinstance(result, TaskDone):
        raise SystemExit(f"the image failed: {result}")
    begun = time.monotonic()
    for number in range(options.scenes):
        store.save(replace(result, id=number))
    seconds = time.monotonic() - begun
    store.close()
    begun = time.monotonic()
    BatchStore(place / "run", inputs, settings_of(job, inputs)).close()
    return {
        "scenes": options.scenes,
        "kept_per_second": round(options.scenes / seconds),
        "milliseconds_each": round(1e3 * seconds / options.scenes, 2),
        "seconds_to_open_again": round(time.monotonic() - begun, 2),
        "kilobytes_of_files_each": round(sum(map(len, result.files.values())) / 1e3, 1),
        "index_bytes_each": round((place / "run" / "index.sqlite").stat().st_size / options.scenes),
        "seconds_to_load_and_explain_one": round(alone, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["kills", "speed", "memory", "driver"])
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-calls", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", action="store_true", help="speed: also measure Ray workers")
    parser.add_argument("--only-driver", action="store_true", help="kills: kill only the driver, not its workers")
    parser.add_argument("--place", type=Path, help="parent of the working folder; default: the system's temporary folder")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        load = os.getloadavg()[0]
        found = {"kills": kills, "speed": speed, "memory": memory, "driver": driver}[options.mode](Path(place), options)
    found |= {"mode": options.mode, "max_calls": options.max_calls, "load_at_start": round(load, 2), "cores": os.cpu_count()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"scale-{options.mode}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
