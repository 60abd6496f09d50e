"""The rules of a check as criteria: what is measured of an image, and when the image breaks the rule."""

from collections.abc import Callable
from dataclasses import dataclass

from becausal.batch.evidence import Evidence
from becausal.batch.places import BoxFile, FixedRegion, MaskFolder, MaskImage, Place, RunBoxes
from becausal.batch.reading import BatchRun
from becausal.batch.rules import CheckRules, ForbiddenRule, OutsideRule, format_limit
from becausal.render.wording import format_share


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One rule, ready to be applied to the images of a run.

    name: of the rule. breach: what breaks it, as a phrase. limit: the share of images that may break it. measure: a number
    for an image, None where it cannot be judged; the image breaks the rule if the number is below `at_least` or above
    `at_most`. describe: the number in words. missing: why no image could be judged. place: what is outlined on pages.
    is_pair: whether two runs are compared.
    """

    name: str
    breach: str
    limit: float
    measure: Callable[[Evidence], float | None]
    describe: Callable[[Evidence, float], str]
    missing: str
    at_least: float | None = None
    at_most: float | None = None
    place: Place | None = None
    is_pair: bool = False

    def breaks(self, value: float) -> bool:
        """Whether an image with this number breaks the rule."""
        return value < self.at_least if self.at_least is not None else value > (self.at_most or 0.0)

    def badness(self, value: float) -> float:
        """Sorts the images that break the rule: the higher, the worse."""
        return -value if self.at_least is not None else value


def make_criteria(rules: CheckRules, run: BatchRun) -> tuple[Criterion, ...]:
    """The criteria of all rules. Raises InputError for files of the rules that cannot be read."""
    made: list[Criterion] = []
    if rules.outside is not None:
        made.append(_make_outside(rules.outside, rules, run))
    if rules.forbidden is not None:
        made.append(_make_forbidden(rules.forbidden, rules, run))
    if rules.size is not None:
        made.append(
            Criterion(
                name="size",
                breach=f"the explanation is larger than {format_limit(rules.size.at_most)} of the view",
                limit=rules.size.max_share,
                at_most=rules.size.at_most,
                measure=lambda image: image.row["size"] if image.is_explained else None,
                describe=lambda image, value: f"{format_share(value)} of the view",
                missing=_nothing_explained(run),
            )
        )
    if rules.necessary is not None:
        made.append(
            Criterion(
                name="necessary",
                breach="the label stays when the explanation is masked",
                limit=rules.necessary.max_share,
                at_least=1.0,
                measure=_measure_necessity,
                describe=lambda image, value: "not necessary",
                missing=f"no explanation of {run.folder} was checked for necessity",
            )
        )
    return (*made, *_compare_with_baseline(rules, run), _count_failures(rules, run))


def check_files(rules: CheckRules) -> None:
    """Raise InputError for files of the rules that cannot be read; before images are explained, which may take long."""
    if rules.outside is not None:
        _find_object(rules.outside, rules)
    if rules.forbidden is not None:
        _find_region(rules.forbidden, rules)


def _find_object(rule: OutsideRule, rules: CheckRules) -> Place | None:
    """Where the objects are by a file of the rules; None for the boxes of the run."""
    if rule.boxes is not None:
        return BoxFile(rules.folder / rule.boxes)
    return None if rule.masks is None else MaskFolder(rules.folder / rule.masks)


def _find_region(rule: ForbiddenRule, rules: CheckRules) -> Place:
    return FixedRegion(*rule.region) if rule.region is not None else MaskImage(rules.folder / (rule.mask or ""))


def _make_outside(rule: OutsideRule, rules: CheckRules, run: BatchRun) -> Criterion:
    place = _find_object(rule, rules) or RunBoxes(run)
    missing = f"no image of {run.folder} has boxes of its label: explain a COCO file, or set boxes or masks"
    if rule.boxes is not None:
        missing = f"{rules.folder / rule.boxes} has no boxes of the labels of the images of {run.folder}"
    elif rule.masks is not None:
        missing = f"{rules.folder / rule.masks} has no masks of the images of {run.folder}: expected NAME.png for NAME.jpg"
    where = "boxes" if rule.masks is None else "mask"
    return Criterion(
        name="outside",
        breach=f"less than {format_limit(rule.below)} of the explanation is inside the object's {where}",
        limit=rule.max_share,
        at_least=rule.below,
        measure=lambda image: place.share(image) if image.is_explained else None,
        describe=lambda image, value: f"{format_share(value)} inside",
        missing=missing,
        place=place,
    )


def _make_forbidden(rule: ForbiddenRule, rules: CheckRules, run: BatchRun) -> Criterion:
    place = _find_region(rule, rules)
    amount = f"more than {format_limit(rule.at_most)}" if rule.at_most else "a part"
    return Criterion(
        name="forbidden",
        breach=f"{amount} of the explanation is in the forbidden region",
        limit=rule.max_share,
        at_most=rule.at_most,
        measure=lambda image: place.share(image) if image.is_explained else None,
        describe=lambda image, value: f"{format_share(value)} in the region",
        missing=_nothing_explained(run),
        place=place,
    )


def _compare_with_baseline(rules: CheckRules, run: BatchRun) -> list[Criterion]:
    made = []
    missing = f"no image was explained both in {run.folder} and in the baseline; images are matched by path, or by content"
    if rules.labels is not None:
        made.append(
            Criterion(
                name="labels",
                breach="the label is not the one of the baseline",
                limit=rules.labels.max_share,
                at_least=1.0,
                measure=_measure_label,
                describe=lambda image, value: f"{image.earlier and image.earlier['label']} → {image.row['label']}",
                missing=missing,
                is_pair=True,
            )
        )
    if rules.overlap is not None:
        made.append(
            Criterion(
                name="overlap",
                breach=f"the explanation overlaps that of the baseline by less than {format_limit(rules.overlap.below)}",
                limit=rules.overlap.max_share,
                at_least=rules.overlap.below,
                measure=lambda image: image.overlap if image.is_explained_twice else None,
                describe=lambda image, value: f"overlap {format_share(value)}",
                missing=missing,
                is_pair=True,
            )
        )
    return made


def _count_failures(rules: CheckRules, run: BatchRun) -> Criterion:
    return Criterion(
        name="failures",
        breach="the image was not explained",
        limit=rules.failures.max_share,
        at_most=0.0,
        measure=lambda image: float(not image.is_explained),
        describe=lambda image, value: image.why_not_explained,
        missing=_nothing_explained(run),
    )


def _measure_necessity(image: Evidence) -> float | None:
    return float(image.row["necessary"]) if image.row["necessary"] is not None else None


def _measure_label(image: Evidence) -> float | None:
    if image.earlier is None or not image.is_explained_twice:
        return None
    return float(image.row["label"] == image.earlier["label"])


def _nothing_explained(run: BatchRun) -> str:
    return f"no image of {run.folder} was explained"
