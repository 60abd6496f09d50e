"""How many model calls each part of an explanation may use: all the arithmetic of `max_calls`.

The limit is on all calls of an image. What comes later keeps a part of it back, so that a search which is cut short still
ends in a set that was checked: the last evaluation, the fresh backgrounds, the last checks, and the extraction.
"""

from dataclasses import dataclass

from becausal.core.metrics import HELD_OUT_COUNT
from becausal.core.request import Request

FIRST_CALL = 1  # call of the whole view, to find its label
EXTRACTION = 80  # questions of an extraction: 64 coarse steps up the ranking, and 16 halvings
BACKGROUNDS = 150  # calls that a set takes which is a prefix of a map and holds on random backgrounds
LAST_QUESTIONS = 2  # of the last checks of a set: is it sufficient, is it necessary?
LAST_CALLS = 16  # of the last evaluation, which shows whether answers depend on the batch
CERTIFICATE = 80  # calls of a certificate: a first one of 0.9 takes 44 where none fails, 91 where two fail


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limit on the calls of one explanation, None for no limit, and what its parts keep back of it.

    fills: calls that a set takes, one under each fill. price: calls that a question of the search takes, twice as many where
    complements are asked too. seeds: searches that share what there is. several: explanations that are looked for.
    has_enough: whether there is a set that holds on random backgrounds.
    """

    max_calls: int | None = None
    fills: int = 1
    price: int = 1
    seeds: int = 1
    several: int = 1
    has_enough: bool = False

    @staticmethod
    def of(request: Request) -> "Budget":
        """The budget of a request."""
        fills = len(request.fills)
        price = 2 * fills if request.contrast else fills
        return Budget(
            max_calls=request.max_calls, fills=fills, price=price, seeds=request.seeds, several=request.several,
            has_enough=request.share_held is not None,
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

    def transfers(self, others: int) -> int:
        """How many fresh backgrounds each set is evaluated on, with this many further sets; of few calls a tenth."""
        if self.max_calls is None:
            return HELD_OUT_COUNT
        return min(HELD_OUT_COUNT, self.max_calls // 10 // (1 + others))

    @property
    def set_limit(self) -> int | None:
        """Where the search for sets ends: their last checks, and those of further explanations, come after it."""
        if self.max_calls is None or self.engine_limit is None:
            return None
        checks = LAST_QUESTIONS * self.fills * (1 + self.has_enough)
        # Further explanations keep back a quarter of the calls at most, however many are looked for.
        further = min(checks * (self.several - 1), self.max_calls // 4)
        return self.engine_limit - checks - further - self.transfers(self.several - 1) * self.several

    @property
    def map_limit(self) -> int | None:
        """Where a method that makes only a map ends: the sets that are taken from it come after it."""
        limit, sets = self.set_limit, EXTRACTION * self.price + BACKGROUNDS * self.has_enough
        # A third at most: a short extraction ends in a set that is too large, a short method in a map that says nothing.
        return None if limit is None else limit - min(sets, (limit - FIRST_CALL) // 3)

    @property
    def certificate(self) -> int:
        """How many calls the search for a set keeps back for its certificate."""
        return 0 if self.max_calls is None else min(CERTIFICATE, self.max_calls // 10)

    def share(self, limit: int | None, spent: int, number: int) -> int | None:
        """Where the search with this number, from 0, ends: those that are left have an equal share of the calls."""
        return None if limit is None else spent + max(0, limit - spent) // (self.seeds - number)

    def questions(self, limit: int | None, spent: int) -> int | None:
        """How many questions a search may ask until then."""
        return None if limit is None else max(0, limit - spent) // self.price
