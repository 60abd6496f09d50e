"""The constants of the search `causal`, chosen by experiment (see the research log)."""

from dataclasses import dataclass, replace

from becausal.core.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the search `causal` spends its model calls; for research, the defaults suit all models.

    Attributes:
        survey: Number of patch sets evaluated first; 0 starts from the whole view.
        survey_fraction: The survey takes at most one n-th of the budget.
        min_survey: A survey with fewer samples than this is left out.
        patches: Approximate number of patches the view is divided into.
        prior: How many trials of a cell the survey's estimate counts for.
        runs: Number of independent searches, of which the smallest set is kept; None for 1 (`small_runs` on small lattices).
        small_lattice: A lattice of at most this many cells is small: no survey, several cheap runs.
        small_runs: Number of runs on a small lattice.
        chains: Number of coarse descents, of which the best is continued; None for 1 after a survey, else 2.
        coarse: Share of the view at which the chains are compared.
        parts: Number of parts drawn per round.
        kinds: Kinds of parts, drawn in turn.
        unions: How many of the best parts are also removed together.
        share: Share of the visible cells that a part has at first.
        last_share: The same, where patches and larger cells were removed before.
        fine_share: The same, where a descent with cells of twice the side came before.
        growth: Factor by which that share grows after a successful round; it is halved after a failed one.
        reheat: Shares the best chain starts again with, one after the other.
        rate: Value of a smaller set, in nats of margin per factor e of its size.
        trust: How strongly parts with a low expected removal cost are preferred; 0 draws them uniformly.
        memory: Share of the observed removal costs that is kept from round to round.
        context: Number of patch sets evaluated together with the explanation, for the map.
        inside: Number of sets of the explanation's cells evaluated in the whole view, for the map; 0 leaves out both.
        twice: Whether cells of twice the side are removed before the cells themselves.
    """

    survey: int = 96
    survey_fraction: int = 5
    min_survey: int = 10
    patches: int = 40
    prior: float = 1.0
    runs: int | None = None
    small_lattice: int = 64
    small_runs: int = 12
    chains: int | None = None
    coarse: float = 0.1
    parts: int = 8
    kinds: tuple[str, ...] = ("box", "strip", "blocks")
    unions: tuple[int, ...] = (2, 3, 4, 8)
    share: float = 0.3
    last_share: float = 0.1
    fine_share: float = 0.2
    growth: float = 1.1
    reheat: tuple[float, ...] = (0.15, 0.15)
    rate: float = 1.0
    trust: float = 2.0
    memory: float = 0.7
    context: int = 88
    inside: int = 24
    twice: bool = True

    def __post_init__(self) -> None:
        counts = (self.parts, self.small_runs, self.survey_fraction, len(self.kinds))
        if min(*counts, *(count for count in (self.chains, self.runs) if count is not None)) < 1:
            raise OptionError("chains, parts, kinds, runs, small_runs and survey_fraction must be at least 1")
        if self.survey < 0 or self.patches < 2 or not self.prior > 0.0:
            raise OptionError("survey must be 0 or more, patches at least 2, prior above 0")
        if not all(0.0 < share < 1.0 for share in (self.share, self.last_share, self.fine_share, *self.reheat)):
            raise OptionError("shares and reheat must lie between 0 and 1")

    def for_boxes(self) -> "Tuning":
        """The same for the boxes of a detector.

        An object is a small part of the image, so there are more and smaller patches, and no larger cells. All boxes of an
        image have the survey in common, so it is larger, and nothing else is measured for the map.
        """
        return replace(self, survey=self.survey + 24, patches=self.patches + 16, parts=6, context=0, inside=0, twice=False)
