"""How far one explanation walks through the code: functions, files, changes of room, nested generators.

    python benchmarks/walk.py            of `becausal explain scene.png` with the bundled model

A change of room is a pair of functions in different folders of src/becausal, one of which calls, or resumes, the other.
The depth of a question is the number of generators that it passes on its way from the search that asks to the engine.
"""

import sys
import tempfile
from collections import Counter
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from PIL import Image

import becausal
from becausal.interfaces.cli.app import main
from becausal.scenes import make_scene

ROOT = str(Path(becausal.__file__).parent) + "/"


def room_of(code: CodeType) -> str | None:
    """The folder of ours that a function is in; None for code of others, and for what only groups values."""
    if not code.co_filename.startswith(ROOT) or code.co_name in ("<module>", "<genexpr>", "<listcomp>"):
        return None
    return code.co_filename.removeprefix(ROOT).split("/")[0]


def is_value(code: CodeType) -> bool:
    """Whether a function is one of core, which every room uses."""
    return room_of(code) == "core"


class Walk:
    """What a run has gone through, as `sys.setprofile` reports it."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.changes: set[tuple[CodeType, CodeType]] = set()
        self.crossings: Counter[tuple[str, str]] = Counter()
        self.depths: Counter[int] = Counter()
        self._yielded = 0  # generators that have passed a question on, one after the other

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """One event of the profiler."""
        if event not in ("call", "return") or (room := room_of(frame.f_code)) is None:
            return
        is_search = bool(frame.f_code.co_flags & CO_GENERATOR) and room != "engine"
        if event == "return":
            self._yielded += is_search
            return
        self._yielded = 0 if is_search else self._yielded
        if frame.f_code.co_name == "accept" and room == "engine":
            self.depths[self._yielded] += 1
        self.functions.add(frame.f_code)
        caller = frame.f_back
        while caller is not None and room_of(caller.f_code) is None:
            caller = caller.f_back
        if caller is not None and (before := room_of(caller.f_code)) is not None and before != room:
            self.changes.add((caller.f_code, frame.f_code))
            self.crossings[before, room] += 1

    def report(self) -> str:
        """The counts, one to a line."""
        questions = sum(self.depths.values())
        return "\n".join(
            [
                f"functions {len(self.functions)}",
                f"files {len({code.co_filename for code in self.functions})}",
                f"changes of room {len(self.changes)}, {sum(not is_value(end) for _, end in self.changes)} without core",
                f"depth of a question: at most {max(self.depths)}, mean "
                f"{sum(depth * count for depth, count in self.depths.items()) / questions:.1f}, of {questions}",
                *(f"{start} calls or resumes {end}: {n}" for (start, end), n in self.crossings.most_common()),
            ]
        )


def run() -> None:
    """Explain a scene from the command line, and print what that went through."""
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "scene.png"
        Image.fromarray(make_scene(100).image).save(image)
        sys.setprofile(walk)
        status = main(["explain", str(image), "--model", "bundled", "--out", f"{folder}/out"])
        sys.setprofile(None)
        if status:
            sys.exit(status)
    print(walk.report())


if __name__ == "__main__":
    run()
