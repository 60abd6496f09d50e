"""One search under way: the questions it waits for, the answers it has had, and what that has cost."""

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Lookahead, Search, Stop, Visible, Wave
from becausal.core.errors import BecausalError
from becausal.core.problem import Problem
from becausal.core.stats import Stats
from becausal.core.targets import quantise_margin

T = TypeVar("T")

Packed = NDArray[np.uint8]  # (n, bytes): visible sets, eight pixels to a byte
Known = tuple[bool, float, float]  # holds, margin, confidence
Key = int | bytes  # of a set: its hash, of 64 bits at least


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A finished search: its result, what stopped it ("finished", "budget", "interrupt", "failure"), what it cost.

    error: what the model failed with, where that stopped it.
    """

    index: int
    result: T
    stopped_by: str
    stats: Stats
    error: BecausalError | None = None


@dataclass(eq=False)
class Drive(Generic[T]):
    """One search under way. limit: on its calls, None for none."""

    index: int
    problem: Problem
    search: Search[T]
    staged: tuple[Any, ...]
    limit: int | None
    memo: dict[Key, Known] = field(default_factory=dict)
    guessed: dict[Key, Known] = field(default_factory=dict)  # answers nobody has asked for yet
    stats: Stats = field(default_factory=Stats)
    stopped_by: str = "finished"
    broken: BecausalError | None = None  # what the model failed with; nothing is asked after that
    turn: int = 0  # counts waves, to tell those that were given up
    wave: Visible = field(default_factory=lambda: np.zeros(0, bool))
    packed: Packed = field(default_factory=lambda: np.zeros(0, np.uint8))
    keys: list[Key] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)  # rows of the wave that are still to be sent
    shown: int = 0  # pixels of the wave's first set: the more, the longer the search still has to go, as a rule
    missing: int = 0  # questions of the wave without an answer: those still to be sent, and those under way
    ahead: Lookahead | None = None  # what the search says it may ask next
    begun: float = field(default_factory=time.perf_counter)

    @property
    def width(self) -> int:
        """Calls a question costs: one under each fill."""
        return len(self.staged)

    @property
    def rows_left(self) -> int:
        return len(self.todo) * self.width

    def take(self, wave: Visible) -> int:
        """Accept a wave; the calls that were made for it already, on a guess.

        Questions seen before, or twice, need no call. Those the budget does not reach are left out.
        """
        self.turn += 1
        afresh = isinstance(wave, Wave) and wave.uncached
        self.ahead = wave.lookahead if isinstance(wave, Wave) else None
        self.wave = np.asarray(wave)
        self.packed = pack(self.wave)
        self.shown = int(np.count_nonzero(self.wave[:1]))
        self.stats.asked += len(self.wave)
        if afresh:
            self.keys = [b"afresh %d" % i for i in range(len(self.wave))]
            for key in self.keys:
                self.memo.pop(key, None)
        else:
            self.keys = hash_rows(self.packed)
        room = self._room(afresh)
        self.todo = deque()
        new: set[Key] = set()
        claimed = 0
        for row, key in enumerate(self.keys):
            if key in self.memo or key in new:
                continue
            if room is not None and len(new) + claimed >= room:
                break
            found = self.guessed.pop(key, None)
            if found is None:
                new.add(key)
                self.todo.append(row)
            else:
                self.memo[key] = found
                claimed += 1
        self.missing = len(self.todo)
        self.stats.calls += claimed * self.width
        self.stats.ahead -= claimed * self.width
        return claimed * self.width

    def _room(self, afresh: bool) -> int | None:
        """How many more questions the budget allows; None for no limit."""
        if self.broken is not None:
            return 0
        return None if self.limit is None or afresh else max(0, (self.limit - self.stats.calls) // self.width)

    def send(self, count: int) -> "Share[T]":
        """The next questions of the wave, to be put into a batch."""
        rows = [self.todo.popleft() for _ in range(count)]
        if rows[-1] - rows[0] + 1 == count:  # they lie together: no need to copy them
            part = slice(rows[0], rows[-1] + 1)
            return Share(self, self.keys[part], self.wave[part], self.packed[part])
        return Share(self, [self.keys[row] for row in rows], self.wave[rows], self.packed[rows])

    def guess(self, count: int) -> "Share[T] | None":
        """Questions the search may ask next, as it says itself, whose answers are not known; at most `count` of them."""
        if self.ahead is None or count < 1:
            return None
        visible = np.asarray(self.ahead(count), bool)[:count]
        if not len(visible):
            return None
        packed = pack(visible)
        keys = hash_rows(packed)
        seen = {*self.keys}
        fresh = []
        for row, key in enumerate(keys):
            if key not in seen and key not in self.memo and key not in self.guessed:
                seen.add(key)
                fresh.append(row)
        if not fresh:
            return None
        return Share(self, [keys[row] for row in fresh], visible[fresh], packed[fresh], is_guess=True)

    def answers(self, rows: int) -> Answers:
        """The answers to the first rows of the wave."""
        known = [self.memo[k] for k in self.keys[:rows]]
        holds, margin, confidence = zip(*known, strict=True) if known else ((), (), ())
        return Answers(np.array(holds, bool), np.array(margin, float), np.array(confidence, float), spent=self.stats.calls)

    def reply(self) -> Answers | Stop:
        """The answers to the whole wave, or, where the budget did not reach, the word to stop with those there are."""
        known = self.known_prefix()
        if known == len(self.keys):
            return self.answers(known)
        if self.stopped_by == "finished":
            self.stopped_by = "budget"
        return Stop(self.stopped_by, self.answers(known), self.broken)

    def give_up(self, error: BecausalError) -> Stop:
        """The model failed: nothing more is asked or awaited. The word to stop with the answers there are."""
        self.broken, self.stopped_by = error, "failure"
        self.turn += 1
        return Stop("failure", self.answers(self.known_prefix()), error)

    def known_prefix(self) -> int:
        for i, key in enumerate(self.keys):
            if key not in self.memo:
                return i
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class Share(Generic[T]):
    """The questions of one search in a batch, each one row under each fill."""

    drive: Drive[T]
    keys: list[Key]
    visible: Visible  # (questions, *grid)
    packed: Packed  # (questions, bytes)
    is_guess: bool = False
    turn: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "turn", self.drive.turn)

    @property
    def rows(self) -> int:
        return len(self.keys) * self.drive.width

    @property
    def is_awaited(self) -> bool:
        """Whether the search still waits for these answers."""
        return not self.is_guess and self.turn == self.drive.turn

    def record(self, scores: NDArray[Any]) -> None:
        """Note what the model said to these rows; with several fills the worst answer counts."""
        drive, width = self.drive, self.drive.width
        judged = drive.problem.target.judge(scores)
        holds, margin, confidence = judged.holds, judged.margin, judged.confidence
        if width > 1:
            holds = np.asarray(holds.reshape(-1, width).all(axis=1))
            margin = margin.reshape(-1, width).min(axis=1)
            confidence = confidence.reshape(-1, width).min(axis=1)
        margin = quantise_margin(margin, holds)
        known = zip(self.keys, zip(holds.tolist(), margin.tolist(), confidence.tolist(), strict=True), strict=True)
        if self.is_guess:
            drive.guessed.update((key, answer) for key, answer in known if key not in drive.memo)
            drive.stats.ahead += self.rows
        else:
            drive.memo.update(known)
            drive.stats.calls += self.rows
            drive.missing -= len(self.keys)


def pack(visible: Visible) -> Packed:
    """Sets, (n, *grid), eight pixels to a byte, (n, bytes)."""
    return np.packbits(visible.reshape(len(visible), -1), axis=1)


def hash_rows(packed: Packed) -> list[Key]:
    """A hash of each row: Python's own, where it has 64 bits, as it is by far the fastest."""
    if sys.hash_info.width < 64:
        return [blake2b(row, digest_size=16).digest() for row in np.ascontiguousarray(packed)]
    return [hash(row.tobytes()) for row in packed]


def assemble(shares: Sequence[Share[T]]) -> tuple[list[Any], NDArray[np.intp]]:
    """The staged pairs of a batch, and which of them each row is of."""
    staged: list[Any] = []
    which: list[NDArray[np.intp]] = []
    for share in shares:
        width = share.drive.width
        place = np.full(len(share.keys) * width, len(staged), np.intp)
        which.append(place if width == 1 else place + np.arange(len(place)) % width)
        staged += share.drive.staged
    return staged, which[0] if len(which) == 1 else np.concatenate(which)


def spread(arrays: Sequence[NDArray[Any]], shares: Sequence[Share[T]], size: int, padding: int | bool) -> NDArray[Any]:
    """The rows of a batch: each question once under each fill, then padding up to the batch's size."""
    parts = [np.repeat(a, s.drive.width, axis=0) if s.drive.width > 1 else a for a, s in zip(arrays, shares, strict=True)]
    rows = sum(len(part) for part in parts)
    if size > rows:
        parts.append(np.full((size - rows, *parts[0].shape[1:]), padding, parts[0].dtype))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
