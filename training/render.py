"""Render scenes in several processes."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from becausal.scenes import LABELS, OCCLUDERS, make_group, make_scene

SIDE = 128
#: Side of scenes with several objects, and the largest number of objects.
GROUP_SIDE, MOST_OBJECTS = 192, 4
CHUNK = 50


@dataclass(frozen=True, kw_only=True)
class RenderPlan:
    """Which scenes to render: the first seed, their number, and arguments of `make_scene`."""

    first: int
    count: int
    label: str | None = None
    occluder: str | None = None
    cover: tuple[float, float] | None = None
    size: int = SIDE


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


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """Which scenes with several objects to render: the first seed, their number, and whether they have an occluder.

    `occluded` is None for the occluders that the seeds determine, True for one in every scene, and False for none.
    """

    first: int
    count: int
    occluded: bool | None = None


@dataclass(frozen=True, kw_only=True)
class RenderedGroups:
    """Scenes with several objects as arrays.

    Images (n, 192, 192, 3); the number of the visible object at each pixel, 0 for none, (n, 192, 192); boxes (n, 4, 4) as
    left, top, right, bottom; labels (n, 4), -1 where there is no object; covered shares (n, 4).
    """

    images: npt.NDArray[np.uint8]
    owners: npt.NDArray[np.uint8]
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    covers: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)


# Set before the worker processes are forked: they inherit it and write images in place instead of sending them.
_shared: dict[str, npt.NDArray[np.uint8]] = {}
_plan: list[RenderPlan | GroupPlan] = []


def _work(start: int) -> tuple[int, list[tuple[int, float, int]]]:
    plan = _plan[0]
    assert isinstance(plan, RenderPlan)
    facts = []
    for k in range(start, min(start + CHUNK, plan.count)):
        try:
            scene = make_scene(plan.first + k, label=plan.label, occluder=plan.occluder, cover=plan.cover, size=plan.size)
        except ValueError as problem:
            # A scene that cannot be covered as planned must not end a long run.
            print(f"  seed {plan.first + k}: {problem}; drawn without an occluder", flush=True)
            scene = make_scene(plan.first + k, label=plan.label, occluder="none", size=plan.size)
        _shared["images"][k] = scene.image
        _shared["visible"][k] = scene.visible
        facts.append((scene.label_index, scene.cover, OCCLUDERS.index(scene.occluder_kind)))
    return start, facts


def _work_on_groups(start: int) -> tuple[int, list[list[tuple[int, float, tuple[int, int, int, int]]]]]:
    plan = _plan[0]
    assert isinstance(plan, GroupPlan)
    facts = []
    for k in range(start, min(start + CHUNK, plan.count)):
        seed = plan.first + k
        kind = None if plan.occluded is None else OCCLUDERS[1 + seed % (len(OCCLUDERS) - 1)] if plan.occluded else "none"
        try:
            scene = make_group(seed, occluder=kind, size=GROUP_SIDE)
        except ValueError as problem:
            print(f"  seed {seed}: {problem}; drawn without an occluder", flush=True)
            scene = make_group(seed, occluder="none", size=GROUP_SIDE)
        _shared["images"][k] = scene.image
        for number, each in enumerate(scene.objects, start=1):
            _shared["visible"][k][each.visible] = number
        facts.append([(each.label_index, each.cover, each.box) for each in scene.objects])
    return start, facts


def _results(
    work: Callable[[int], tuple[int, Any]],
    plan: RenderPlan | GroupPlan,
    side: int,
    *,
    workers: int,
    seconds: float,
    name: str,
) -> Iterator[tuple[int, Any]]:
    """Render a plan in several processes, chunk by chunk, into `_shared`; stop after `seconds`."""
    start_time = reported = time.monotonic()
    pixels = plan.count * side * side
    _shared["images"] = np.frombuffer(mmap.mmap(-1, pixels * 3), dtype=np.uint8).reshape(-1, side, side, 3)
    _shared["visible"] = np.frombuffer(mmap.mmap(-1, pixels), dtype=np.uint8).reshape(-1, side, side)
    _plan[:] = [plan]
    count = 0
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for start, facts in pool.imap_unordered(work, range(0, plan.count, CHUNK)):
            count += len(facts)
            yield start, facts
            now = time.monotonic()
            if now - reported > 10:
                reported = now
                print(f"  {name}: {count} of {plan.count} scenes, {now - start_time:.0f} s", flush=True)
            if now - start_time > seconds:
                print(f"  {name}: out of time, continuing with {count} scenes", flush=True)
                pool.terminate()
                break
    print(f"rendered {name}: {count} scenes in {time.monotonic() - start_time:.1f} s", flush=True)


def render(plan: RenderPlan, *, workers: int, seconds: float, name: str) -> Rendered:
    """Render a plan in several processes; after `seconds` the scenes rendered so far are returned."""
    done = np.zeros(plan.count, dtype=np.bool_)
    labels, covers, kinds = (
        np.zeros(plan.count, np.int64),
        np.zeros(plan.count, np.float32),
        np.zeros(plan.count, np.int64),
    )
    for start, facts in _results(_work, plan, plan.size, workers=workers, seconds=seconds, name=name):
        stop = start + len(facts)
        labels[start:stop] = [fact[0] for fact in facts]
        covers[start:stop] = [fact[1] for fact in facts]
        kinds[start:stop] = [fact[2] for fact in facts]
        done[start:stop] = True
    keep = slice(None) if done.all() else done
    return Rendered(
        images=_shared["images"][keep], visible=_shared["visible"][keep], labels=labels[keep], covers=covers[keep],
        kinds=kinds[keep],
    )  # fmt: skip


def render_groups(plan: GroupPlan, *, workers: int, seconds: float, name: str) -> RenderedGroups:
    """Render scenes with several objects in several processes; after `seconds` those rendered so far are returned."""
    done = np.zeros(plan.count, dtype=np.bool_)
    labels = np.full((plan.count, MOST_OBJECTS), -1, dtype=np.int64)
    boxes = np.zeros((plan.count, MOST_OBJECTS, 4), dtype=np.float32)
    covers = np.zeros((plan.count, MOST_OBJECTS), dtype=np.float32)
    for start, facts in _results(_work_on_groups, plan, GROUP_SIDE, workers=workers, seconds=seconds, name=name):
        for k, objects in enumerate(facts, start=start):
            for number, (label, cover, box) in enumerate(objects):
                labels[k, number], covers[k, number], boxes[k, number] = label, cover, box
            done[k] = True
    keep = slice(None) if done.all() else done
    return RenderedGroups(
        images=_shared["images"][keep], owners=_shared["visible"][keep], boxes=boxes[keep], labels=labels[keep],
        covers=covers[keep],
    )  # fmt: skip


def describe(scenes: Rendered) -> str:
    """The number of scenes of each label, as text."""
    counts = np.bincount(scenes.labels, minlength=len(LABELS))
    return ", ".join(f"{label} {count}" for label, count in zip(LABELS, counts, strict=True))
