"""Render scenes in several processes."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from becausal.scenes import LABELS, OCCLUDERS, make_scene

SIDE = 128
CHUNK = 50


@dataclass(frozen=True, kw_only=True)
class RenderPlan:
    """Which scenes to render: the first seed, their number, and arguments of `make_scene`."""

    first: int
    count: int
    occluder: str | None = None
    cover: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Scenes as arrays: images (n, 128, 128, 3), masks of the visible object (n, 128, 128), and the rest (n,)."""

    images: npt.NDArray[np.uint8]
    visible: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    covers: npt.NDArray[np.float32]
    kinds: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


# Set before the worker processes are forked: they inherit it and write images in place instead of sending them.
_shared: dict[str, npt.NDArray[np.uint8]] = {}
_plan: list[RenderPlan] = []


def _work(start: int) -> tuple[int, list[tuple[int, float, int]]]:
    plan = _plan[0]
    facts = []
    for k in range(start, min(start + CHUNK, plan.count)):
        try:
            scene = make_scene(plan.first + k, occluder=plan.occluder, cover=plan.cover, size=SIDE)
        except ValueError as problem:
            # A scene that cannot be covered as planned must not end a long run.
            print(f"  seed {plan.first + k}: {problem}; drawn without an occluder", flush=True)
            scene = make_scene(plan.first + k, occluder="none", size=SIDE)
        _shared["images"][k] = scene.image
        _shared["visible"][k] = scene.visible
        facts.append((scene.label_index, scene.cover, OCCLUDERS.index(scene.occluder_kind)))
    return start, facts


def render(plan: RenderPlan, *, workers: int, seconds: float, name: str) -> Rendered:
    """Render a plan in several processes; after `seconds` the scenes rendered so far are returned."""
    start_time = time.monotonic()
    pixels = plan.count * SIDE * SIDE
    _shared["images"] = np.frombuffer(mmap.mmap(-1, pixels * 3), dtype=np.uint8).reshape(-1, SIDE, SIDE, 3)
    _shared["visible"] = np.frombuffer(mmap.mmap(-1, pixels), dtype=np.uint8).reshape(-1, SIDE, SIDE)
    _plan[:] = [plan]
    done = np.zeros(plan.count, dtype=np.bool_)
    labels, covers, kinds = (
        np.zeros(plan.count, np.int64),
        np.zeros(plan.count, np.float32),
        np.zeros(plan.count, np.int64),
    )
    reported = start_time
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for start, facts in pool.imap_unordered(_work, range(0, plan.count, CHUNK)):
            stop = start + len(facts)
            labels[start:stop] = [fact[0] for fact in facts]
            covers[start:stop] = [fact[1] for fact in facts]
            kinds[start:stop] = [fact[2] for fact in facts]
            done[start:stop] = True
            now = time.monotonic()
            if now - reported > 10:
                reported = now
                print(f"  {name}: {int(done.sum())} of {plan.count} scenes, {now - start_time:.0f} s", flush=True)
            if now - start_time > seconds:
                print(f"  {name}: out of time, continuing with {int(done.sum())} scenes", flush=True)
                pool.terminate()
                break
    count = int(done.sum())
    print(f"rendered {name}: {count} scenes in {time.monotonic() - start_time:.1f} s", flush=True)
    keep = slice(None) if count == plan.count else done
    return Rendered(
        images=_shared["images"][keep], visible=_shared["visible"][keep], labels=labels[keep], covers=covers[keep],
        kinds=kinds[keep],
    )  # fmt: skip


def describe(scenes: Rendered) -> str:
    """The number of scenes of each label, as text."""
    counts = np.bincount(scenes.labels, minlength=len(LABELS))
    return ", ".join(f"{label} {count}" for label, count in zip(LABELS, counts, strict=True))
