"""Answers of chat models: how they are compared, and what the probabilities of their tokens say of the choices there are."""

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from becausal.core.errors import AnswerError
from becausal.core.text import one_line, replace_surrogates

_MOST = 4096  # characters of an answer
_ARTICLES = ("a", "an", "the")
_BEFORE = re.compile(r"[\W_]*(?:(?:an?|the)\b[\W_]+)?", re.IGNORECASE)  # what may come before an answer
_KEPT = re.compile(r"(?<=\d)[.,:](?=\d)|(?<!\w)-(?=\d)|(.)", re.DOTALL)  # punctuation in numbers; all other characters


@dataclass(frozen=True)
class ChatAnswer:
    """text: in plain form. scores: of the choices, and last of all other answers; None where they are not known."""

    text: str
    scores: Sequence[float] | None = None


def plain(text: str) -> str:
    """An answer as it is compared with others: without case, punctuation, articles and further white space."""

    def keep(match: re.Match[str]) -> str:
        kind = "Nd" if match[1] is None else unicodedata.category(match[1])
        return " " if kind[0] in "PZC" or kind == "Sk" else match[0]

    folded = unicodedata.normalize("NFKC", replace_surrogates(text)).casefold()
    words = _KEPT.sub(keep, folded).split()
    return " ".join([word for word in words if word not in _ARTICLES] or words or folded.split())


def differ_at_once(choices: Sequence[str]) -> bool:
    """Whether the first word of no choice, in plain form, begins that of another, or may be an article."""
    words = [choice.split(" ")[0] for choice in choices]
    return not any(a in _ARTICLES or a.startswith(b) for i, a in enumerate(words) for j, b in enumerate(words) if i != j)


def read_scores(tokens: Sequence[tuple[str, Mapping[str, float]]], text: str, choices: Sequence[str]) -> list[float] | None:
    """The probability of each choice, and last of another answer, (choices + 1,): that of the likeliest token to begin it.

    tokens: of the answer, each with the probabilities of those that may be in its place. text, choices: in plain form. None
    where the first token of the answer itself leaves open what is said, or was not the likeliest.
    """
    raw = "".join(token for token, _ in tokens)
    start = len(raw) - len(_BEFORE.sub("", raw, count=1))
    ends = accumulate(len(token) for token, _ in tokens)
    end, token, chances = next(
        ((end, *one) for end, one in zip(ends, tokens, strict=True) if end > start), (0, "", {"": 0.0})
    )
    other = len(choices)
    said = choices.index(text) if text in choices else other
    begun, own = _begun_by(raw[start:end], choices), chances[token]
    if len(begun) > 1 or (said != other and begun != [said]) or max(chances.values()) > 1.001 * own:
        return None
    scores = [0.0] * (other + 1)
    for candidate, chance in chances.items():
        begun = _begun_by(_BEFORE.sub("", candidate, count=1), choices)
        if candidate != token and len(begun) < 2:  # of two that begin alike it is not known which
            column = begun[0] if begun else other
            scores[column] = max(scores[column], min(chance, 0.9999 * own))  # what is said comes first
    scores[said] = own
    return scores


def _begun_by(piece: str, choices: Sequence[str]) -> list[int]:
    """The choices that a token begins; all of them where it says nothing."""
    said = plain(piece)
    return [i for i, choice in enumerate(choices) if not said or said in _ARTICLES or choice.startswith(said)]


def read_answer(content: Mapping[str, Any], choices: Sequence[str], scrub: Callable[[str], str] = str) -> ChatAnswer:
    """The answer in a response, with scores where there are log-probabilities that fit it.

    choices: in plain form. scrub: removes what must not be in a label. Raises AnswerError, which begins with a verb, for a
    refusal, and where there is no answer.
    """
    try:
        choice = content["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        text, refusal = message.get("content") or "", message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise AnswerError("sent a response without an answer") from None
    if refusal or reason == "content_filter":
        raise AnswerError(f"refused to answer: {one_line(scrub(str(refusal or reason)), 200)}")
    if isinstance(text, str) and len(text) > _MOST:
        raise AnswerError(f"sent an answer of {len(text):,} characters; expected a short one")
    if not isinstance(text, str) or not plain(text):
        thinks = ": it may think first, which this does not wait for" if reason == "length" else ""
        raise AnswerError(f"sent an empty answer (finish_reason {one_line(str(reason), 40)}){thinks}")
    said = plain(scrub(text))
    try:
        tokens = [
            (str(item["token"]), {str(one["token"]): _chance(one["logprob"]) for one in (*item["top_logprobs"][::-1], item)})
            for item in choice["logprobs"]["content"]
        ]
        return ChatAnswer(said, read_scores(tokens, said, choices) if choices else None)
    except (KeyError, TypeError, AttributeError, ValueError):
        return ChatAnswer(said)


def _chance(logprob: float) -> float:
    """The probability behind a log-probability. Raises ValueError for what is none."""
    if not logprob <= 0.01:  # nor NaN
        raise ValueError
    return min(1.0, math.exp(logprob))
