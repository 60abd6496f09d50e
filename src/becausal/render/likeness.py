"""Words for a similarity: to another image, `embed:`, or to a text, `clip:` with one prompt."""

from becausal.core.explanation import ExplanationRecord
from becausal.render.numbers import format_share


def similar_to(explanation: ExplanationRecord) -> str:
    """The image, or the text, that the similarity is about; empty where something else was asked."""
    loading, label = explanation.origin.loading, explanation.label
    return label.removeprefix("like ") if "like" in loading else label if "text" in loading else ""


def keeps_share(explanation: ExplanationRecord) -> bool:
    """Whether a share of a similarity counts as kept, so that a share of the score says it all."""
    return bool(similar_to(explanation)) and explanation.target.share is not None


def name_score(explanation: ExplanationRecord, *, possessive: bool = False) -> str:
    """What the target's number is called: confidence, score, similarity or IoU. possessive: its score, the similarity."""
    if similar_to(explanation):
        return "the similarity" if possessive else "similarity"
    if explanation.target.segment is not None:
        return "the IoU" if possessive else "IoU"
    name = "confidence" if explanation.target.box is None else "score"
    return f"its {name}" if possessive else name


def describe_similarity(explanation: ExplanationRecord) -> tuple[str, str]:
    """What is kept of a similarity: half of the similarity, a similarity of at least 0.7; and the same as a condition."""
    target = explanation.target
    rule = f"the cosine similarity to {similar_to(explanation)} is at least {max(target.threshold or 0.0, target.floor):.3g}"
    if target.share is None:
        return f"a similarity of at least {target.threshold or 0.0:g}", rule
    share = "half" if target.share == 0.5 else format_share(target.share)
    return f"{share} of the similarity", f"{rule}, not counting what an empty image has"


def ends_of_similarity(explanation: ExplanationRecord) -> tuple[str, str]:
    """How a similarity is said to be lost, and to stay."""
    target = explanation.target
    if target.share is None:
        least = f"{target.threshold or 0.0:g}"
        return f"the similarity is below {least}", f"the similarity is {least} or more"
    share = "half" if target.share == 0.5 else format_share(target.share)
    return f"less than {share} of the similarity is left", f"{share} of the similarity or more is left"
