"""Synthetic runs for the tests of `becausal check`: rows with any values, and the pixels of the explanations one wants."""

import json
import sqlite3
from pathlib import Path

import numpy as np
from batch_toys import open_store

from becausal.batch.index import folder_of
from becausal.core.explanation import SCHEMA
from becausal.core.frames import Frame

DONE = {
    "state": "done", "label": "bus", "size": 0.1, "calls": 9, "seconds": 0.1, "stopped_by": "finished", "necessary": 1,
}  # fmt: skip


def make_run(run: Path, rows: list[dict[str, object]], visible: dict[int, np.ndarray] | None = None) -> Path:
    """A run with these rows, explained where they say nothing else; visible: pixels, over the image itself, by number."""
    run.parent.mkdir(parents=True, exist_ok=True)
    names = run.parent / f"{run.name}.txt"
    names.write_text("\n".join(str(row.pop("image", f"{k:06d}.png")) for k, row in enumerate(rows)))
    open_store(run, names).close()
    with sqlite3.connect(run / "index.sqlite", isolation_level=None) as index:
        index.execute("BEGIN")
        for number, row in enumerate(rows):
            values = (DONE if row.get("state", "done") == "done" else {}) | row
            columns = ", ".join(f"{name} = ?" for name in values)
            index.execute(f"UPDATE images SET {columns} WHERE id = ?", (*values.values(), number))
        index.execute("COMMIT")
    index.close()
    for number, mask in (visible or {}).items():
        write_pixels(folder_of(run, number), mask)
    return run


def write_pixels(folder: Path, visible: np.ndarray, frame: Frame | None = None) -> None:
    """What `BatchRun.load_visible` reads of an explanation."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"schema": SCHEMA, "frame": (frame or Frame.identity(visible.shape)).record()}
    (folder / "explanation.json").write_text(json.dumps(record))
    np.savez(folder / "arrays.npz", visible=visible)


def square(left: int, top: int, side: int = 4, grid: tuple[int, int] = (24, 24)) -> np.ndarray:
    """A mask that is True in a square."""
    mask = np.zeros(grid, bool)
    mask[top : top + side, left : left + side] = True
    return mask
