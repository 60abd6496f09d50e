"""How many model calls each part of an explanation may use: all the arithmetic of `max_calls`.

The limit is on all calls of an image. What comes later keeps a part of it back, so that a search which is cut short still
ends in a set that was checked: first the level "any", then the last evaluation, the last checks, and the extraction.
"""

from dataclasses import dataclass, replace

from becausal.core.request import Request

FIRST_CALL = 1  # call of the whole view, to find its label
EXTRACTION = 80  # questions of an extraction: 64 coarse steps up the ranking, and 16 halvings
LAST_QUESTIONS = 2  # of the last checks of a level: is it sufficient, is it necessary?
LAST_CALLS = 16  # of the last evaluation, which shows whether answers depend on the batch
ANY = 700  # calls of the level "any"; without a limit it took 450 to 1,070 on three scenes, with a share of 0.9
LEAST = 10  # calls that are left for the other levels, however few there are
CERTIFICATE = 100  # calls of a certificate: a first one of 0.9 takes 44 where none fails, 91 where two fail


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limit on the calls of one explanation, and what its parts keep back of it.

    Attributes:
        max_calls: The limit; None for no limit.
        fills: How many calls a set takes: one under each fill.
        price: How many calls a question of the search takes: twice as many where complements are asked too.
        seeds: How many searches share what there is.
        several: How many explanations are looked for.
        has_any: Whether the level "any" follows.
    """

    max_calls: int | None = None
    fills: int = 1
    price: int = 1
    seeds: int = 1
    several: int = 1
    has_any: bool = False

    @staticmethod
    def of(request: Request) -> "Budget":
        """The budget of a request."""
        fills = len(request.fills)
        price = 2 * fills if request.contrast else fills
        return Budget(
            max_calls=request.max_calls, fills=fills, price=price, seeds=request.seeds, several=request.several,
            has_any=request.holds is not None,
        )  # fmt: skip

    @property
    def last_rows(self) -> int:
        """How many sets are evaluated once more at the very end, in one batch; none where calls are few."""
        calls = LAST_CALLS if self.max_calls is None else min(LAST_CALLS, self.max_calls // LAST_CALLS)
        return calls // self.fills

    @property
    def engine_limit(self) -> int | None:
        """The engine's limit; the last evaluation, of the explanation alone and with other sets, is past it."""
        return None if self.max_calls is None else self.max_calls - (1 + self.last_rows) * self.fills

    def for_levels(self) -> "Budget":
        """The budget of the other levels: where the level "any" follows, it keeps its calls, or a third of them all."""
        if not self.has_any or self.max_calls is None:
            return self
        return replace(self, max_calls=max(LEAST, self.max_calls - min(ANY, self.max_calls // 3)), has_any=False)

    def set_limit(self, levels: int) -> int | None:
        """Where the search for sets ends: the last checks of these levels, and of further explanations, come after it."""
        if self.max_calls is None or self.engine_limit is None:
            return None
        checks = LAST_QUESTIONS * self.fills * levels
        return self.engine_limit - checks - min(checks * (self.several - 1), self.max_calls // 4)

    def map_limit(self, levels: int) -> int | None:
        """Where a method that makes only a map ends: the extractions of these levels come after it."""
        limit = self.set_limit(levels)
        return None if limit is None else limit - min(EXTRACTION * self.price * levels, (limit - FIRST_CALL) // 3)

    def share(self, limit: int | None, spent: int, number: int) -> int | None:
        """Where the search with this number, from 0, ends: those that are left have an equal share of the calls."""
        return None if limit is None else spent + max(0, limit - spent) // (self.seeds - number)

    def questions(self, limit: int | None, spent: int) -> int | None:
        """How many questions a search may ask until then."""
        return None if limit is None else max(0, limit - spent) // self.price

    @property
    def any_limit(self) -> int | None:
        """Where the search for the level "any" ends: its last checks come after it."""
        return None if self.max_calls is None else self.max_calls - (1 + LAST_QUESTIONS) * self.fills


def before_certificate(limit: int | None) -> int | None:
    """Where the search for a set ends that still needs its certificate."""
    return None if limit is None else limit - CERTIFICATE
