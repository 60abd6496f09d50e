"""Time and memory of `becausal check` by the number of images.

    python benchmarks/check.py --rows 1000 10000

Makes two runs per number of rows, from copies of one explanation (hard links, so that they take no space), and judges one
of them in a new process: by rules that need the index only, by rules that read the pixels of every explanation, and with
the other run as a baseline. Writes benchmarks/results/check.json and prints it.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from becausal.batch.index import RESULTS as COLUMNS
from becausal.batch.index import folder_of
from becausal.interfaces.cli.app import main

RESULTS = Path(__file__).parent / "results"
RULES = {
    "index": "[outside]\n[size]\nat_most = 0.2\n[necessary]\nmin_share = 0\n[failures]\n",
    "pixels": "[forbidden]\nregion = [0, 0, 32, 32]\nmax_share = 1\n[failures]\n",
    "baseline": "[labels]\n[overlap]\n",
}
# Linux keeps the peak of the new program in VmHWM; getrusage would include that of the process that started it.
CHILD = (
    "import sys; from becausal.interfaces.cli.app import main; main(sys.argv[1:]);"
    "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'));"
    "print(int(peak.split()[1]) // 1024, file=sys.stderr)"
)


def multiply(run: Path, rows: int) -> None:
    """Give a run of one image further rows, and links to the files of its explanation."""
    names = ", ".join((*COLUMNS, "state", "truth", "boxes", "box_size", "finished", "tries"))
    with sqlite3.connect(run / "index.sqlite") as index:
        index.execute(
            f"WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?) INSERT INTO images (id, image, "
            f"{names}) SELECT n.id, printf('images/%06d.png', n.id), {names} FROM n, images WHERE images.id = 0",
            (rows - 1,),
        )
    first = folder_of(run, 0)
    for number in range(1, rows):
        folder = folder_of(run, number)
        folder.mkdir(parents=True)
        for file in ("explanation.json", "arrays.npz"):
            os.link(first / file, folder / file)


def measure(place: Path, rows: int, kind: str) -> dict[str, float | int | str]:
    """One check in a new process: seconds in all, with the start of Python, and peak memory in MB."""
    (place / "rules.toml").write_text(RULES[kind])
    words = ["check", str(place / "run"), "--rules", str(place / "rules.toml")]
    words += ["--baseline", str(place / "old")] if kind == "baseline" else []
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CHILD, *words], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - started
    return {"rows": rows, "rules": kind, "seconds": round(seconds, 1), "megabytes": int(done.stderr.split()[-1])}


def run_all(counts: list[int]) -> None:
    found = []
    for rows in counts:
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            main(["scenes", "make", "--count", "1", "--seed", "107", "--out", str(place / "scenes")])
            for run in ("run", "old"):
                main(["batch", str(place / "scenes" / "scenes.json"), "--model", "bundled", "--out", str(place / run)])
                multiply(place / run, rows)
            found += [measure(place, rows, kind) for kind in RULES]
    record = {"load": os.getloadavg()[0], "cores": os.cpu_count(), "checks": found}
    (RESULTS / "check.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000])
    run_all(parser.parse_args().rows)
