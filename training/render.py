"""Render many scenes at once with all the cores of a machine."""

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
class Plan:
    """Which scenes to render: the first seed, how many, and what to ask of each."""

    first: int
    count: int
    occluder: str | None = None
    cover: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Scenes as arrays: images (n, 128, 128, 3), visible masks (n, 128, 128), and one number each of the rest."""

    pictures: npt.NDArray[np.uint8]
    visible: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    covers: npt.NDArray[np.float32]
    kinds: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


# Set before the worker processes are forked, so that they inherit it: images are written in place, not sent.
_shared: dict[str, npt.NDArray[np.uint8]] = {}
_plan: list[Plan] = []


def _work(start: int) -> tuple[int, list[tuple[int, float, int]]]:
    plan = _plan[0]
    facts = []
    for k in range(start, min(start + CHUNK, plan.count)):
        try:
            scene = make_scene(plan.first + k, occluder=plan.occluder, cover=plan.cover, size=SIDE)
        except ValueError as problem:
            # One scene that cannot be covered as asked must not end a long run.
            print(f"  seed {plan.first + k}: {problem}; drawn without occluder", flush=True)
            scene = make_scene(plan.first + k, occluder="none", size=SIDE)
        _shared["pictures"][k] = scene.picture
        _shared["visible"][k] = scene.visible
        facts.append((scene.label_index, scene.cover, OCCLUDERS.index(scene.occluder_kind)))
    return start, facts


def render(plan: Plan, *, workers: int, seconds: float, name: str) -> Rendered:
    """Render a plan with a number of processes; stop early (with what is done) when the seconds are over."""
    began = time.monotonic()
    pixels = plan.count * SIDE * SIDE
    _shared["pictures"] = np.frombuffer(mmap.mmap(-1, pixels * 3), dtype=np.uint8).reshape(-1, SIDE, SIDE, 3)
    _shared["visible"] = np.frombuffer(mmap.mmap(-1, pixels), dtype=np.uint8).reshape(-1, SIDE, SIDE)
    _plan[:] = [plan]
    done = np.zeros(plan.count, dtype=np.bool_)
    labels, covers, kinds = (
        np.zeros(plan.count, np.int64),
        np.zeros(plan.count, np.float32),
        np.zeros(plan.count, np.int64),
    )
    told = began
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for start, facts in pool.imap_unordered(_work, range(0, plan.count, CHUNK)):
            stop = start + len(facts)
            labels[start:stop] = [fact[0] for fact in facts]
            covers[start:stop] = [fact[1] for fact in facts]
            kinds[start:stop] = [fact[2] for fact in facts]
            done[start:stop] = True
            now = time.monotonic()
            if now - told > 10:
                told = now
                print(f"  {name}: {int(done.sum())} of {plan.count} scenes, {now - began:.0f} s", flush=True)
            if now - began > seconds:
                print(f"  {name}: time is over, going on with {int(done.sum())} scenes", flush=True)
                pool.terminate()
                break
    count = int(done.sum())
    print(f"rendered {name}: {count} scenes in {time.monotonic() - began:.1f} s", flush=True)
    keep = slice(None) if count == plan.count else done
    return Rendered(
        pictures=_shared["pictures"][keep], visible=_shared["visible"][keep], labels=labels[keep], covers=covers[keep],
        kinds=kinds[keep],
    )  # fmt: skip


def describe(scenes: Rendered) -> str:
    """Say how many scenes there are of each label."""
    counts = np.bincount(scenes.labels, minlength=len(LABELS))
    return ", ".join(f"{label} {count}" for label, count in zip(LABELS, counts, strict=True))
