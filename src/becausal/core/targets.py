"""What must stay true of the classifier's answer: the rule that turns scores into `Answers`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Box, is_box, overlaps
from becausal.core.contracts import Answers
from becausal.core.errors import TargetError
from becausal.core.segments import Place, find_class, measure_overlap, read_place, read_segment

FAINT = 1e-30  # a probability too small to matter, so that its logarithm is finite
STEP = 1 / 32  # nats; other backends differ by less, and 3 % more or less of a probability is no reason for a choice
OVERLAP = 0.5  # intersection over union at which two boxes count as the same
LOST = -6.0  # the margin of a box of which nothing is left


@dataclass(frozen=True)
class Target:
    """What must stay true: the label is the top label (default), in the top k, above `threshold` (multi-label), or ahead of
    one other label.

    floor: the label's confidence must also be at least this much; 0 asks for nothing.
    share: of a label that scores below the model's own threshold (multi-label), or of a similarity: `threshold` is this
    share of its score.
    against: only this label must be beaten, whatever the others say.
    box: of a detector: a box of this label that overlaps this one is still found, with a score of at least `threshold`.
    place: of a model that gives every pixel a label: only that of this place counts. segment: of such a model: the label
    still has this segment, with an overlap of at least `threshold`. See `core.segments` for both.
    """

    label_id: int
    top: int = 1
    floor: float = 0.0
    threshold: float | None = None
    against: int | None = None
    box: Box | None = None
    place: Place | None = None
    segment: str | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if self.label_id < 0:
            raise TargetError(f"the target's label must be 0 or more, not {self.label_id}")
        if self.top < 1:
            raise TargetError(f"top must be at least 1, not {self.top}")
        if not 0.0 <= self.floor <= 1.0:
            raise TargetError(f"the confidence floor must lie in 0..1, not {self.floor}")
        if self.against == self.label_id:
            raise TargetError("the target and the label it is explained against are the same")
        if self.box is not None and not is_box(self.box):
            raise TargetError(f"a box has a left, top, right and bottom, in this order and with an area, not {self.box}")
        if self.place is not None and not all(0.0 <= share < 1.0 for share in self.place):
            raise TargetError(f"a place lies in the view, from 0 up to 1 across and down, not at {self.place}")
        if self.segment is not None:
            read_segment(self.segment)

    @property
    def noun(self) -> str:
        """What it is about: a label, and so are those of a pixel, a box, or a segment."""
        return "label" if self.box is None and self.segment is None else "box" if self.segment is None else "segment"

    def read(self, answer: NDArray[Any]) -> NDArray[Any]:
        """The scores (n, classes) in maps (n, classes, h, w): at the place, or how far the segment is found again.

        Every other answer is returned as it is.
        """
        if answer.ndim != 4:
            return answer
        if self.place is not None:
            return read_place(answer, self.place)
        scores = np.zeros(answer.shape[:2], np.float32)
        if self.segment is not None and self.label_id < answer.shape[1]:
            scores[:, self.label_id] = measure_overlap(find_class(answer, self.label_id), self.segment)
        return scores

    def judge(self, scores: NDArray[Any]) -> Answers:
        """The answers behind (n, classes) probabilities, (n,) labels, the boxes of a detector (`core.boxes`), or maps.

        Margins are in nats, the logarithm of the label's probability over its rival's (or over the floor, or the
        threshold), so that they still say something where probabilities are all but 0 or 1.
        """
        if self.box is not None:
            return self._judge_boxes(scores, self.box)
        scores = self.read(scores)
        if scores.ndim == 1:
            holds = scores == self.label_id
            return Answers(holds, np.where(holds, 1.0, -1.0), np.full(len(scores), np.nan))
        if max(self.label_id, self.against or 0) >= scores.shape[1]:  # the label of another model never holds
            return Answers(np.zeros(len(scores), bool), np.full(len(scores), -1.0), np.zeros(len(scores)))
        mine = scores[:, self.label_id].astype(np.float64)
        if self.threshold is not None:
            margin = _ratio(mine, np.float64(self.threshold))
        elif self.against is None:
            margin = self._lead(scores, mine)
        else:
            margin = np.full(len(scores), np.inf)
        if self.against is not None:
            rival = scores[:, self.against].astype(np.float64)
            ahead = (mine > rival) | ((mine == rival) & (self.label_id < self.against))
            margin = np.minimum(margin, _signed(_ratio(mine, rival), ahead))
        if self.floor > 0.0:
            margin = np.minimum(margin, _ratio(mine, np.float64(self.floor)))
        return Answers(margin >= 0.0, margin, mine)

    def _judge_boxes(self, detections: NDArray[Any], box: Box) -> Answers:
        """How well the best box of this label does: its score, and its overlap, above what is required.

        The overlap counts as much as the score: from none to what is required it is worth -LOST nats.
        """
        if detections.ndim != 3:  # the answer of a classifier
            return Answers(np.zeros(len(detections), bool), np.full(len(detections), LOST), np.zeros(len(detections)))
        score = detections[..., 4].astype(np.float64)
        is_own = detections[..., 5] == self.label_id
        shared = overlaps(detections, box)
        required = np.float64(max(self.threshold or FAINT, self.floor))
        margin = np.minimum(_ratio(score, required), (shared / OVERLAP - 1.0) * -LOST)
        margin = np.where(is_own, np.maximum(margin, LOST), LOST).max(axis=1)
        confidence = np.where(is_own & (shared >= OVERLAP), score, 0.0).max(axis=1)
        similarity = np.where(is_own, score * shared, 0.0).max(axis=1)
        return Answers(margin >= 0.0, margin, confidence, similarity=similarity)

    def _lead(self, scores: NDArray[Any], mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far the label is ahead of the one that would push it out of the top k; ties go to the lower id."""
        if scores.shape[1] <= self.top:
            return np.ones(len(scores))
        if self.top == 1:  # the same as below, without its copies
            before = scores[:, : self.label_id].max(axis=1, initial=-np.inf)
            after = scores[:, self.label_id + 1 :].max(axis=1, initial=-np.inf)
            own = scores[:, self.label_id]
            return _signed(_ratio(mine, np.maximum(before, after).astype(np.float64)), (own > before) & (own >= after))
        others = np.delete(scores, self.label_id, axis=1)
        rival = np.partition(others, -self.top, axis=1)[:, -self.top].astype(np.float64)
        before = (others[:, : self.label_id] >= scores[:, self.label_id, None]).sum(axis=1)
        after = (others[:, self.label_id :] > scores[:, self.label_id, None]).sum(axis=1)
        return _signed(_ratio(mine, rival), before + after < self.top)


def with_floor(answers: Answers, floor: float) -> Answers:
    """The same answers, judged by a target that also requires a confidence of at least `floor`."""
    if not floor > 0.0:
        return answers
    holds = holds_with_floor(answers, floor)
    margin = quantise_margin(np.minimum(answers.margin, _ratio(answers.confidence, np.float64(floor))), holds)
    return Answers(holds, margin, answers.confidence, answers.spent, answers.similarity)


def holds_with_floor(answers: Answers, floor: float) -> NDArray[np.bool_]:
    """Whether the target holds with a confidence of at least `floor`, (n,)."""
    return answers.holds & (answers.confidence >= floor) if floor > 0.0 else answers.holds


def _ratio(mine: NDArray[np.float64], rival: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    """log(mine / rival), finite."""
    return np.asarray(np.log(np.maximum(mine, FAINT) / np.maximum(rival, FAINT)), np.float64)


def _signed(margin: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The margin, made to be at or above 0 exactly where the target holds, ties included."""
    return np.where(holds, np.maximum(margin, 0.0), np.minimum(margin, -FAINT))


def quantise_margin(margin: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The margin in steps of STEP: what a search sees, so that noise in a score's last digits does not lead it elsewhere.

    A search makes some thousand draws and choices by margins, and each follows from those before; without steps the last
    digit of one margin, other on another backend, is enough for another explanation.
    """
    return _signed(np.rint(margin / STEP) * STEP, holds)
