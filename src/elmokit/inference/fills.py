"""Words of several tokens that fit a blank, such as Chinese words of several characters.

Input: the tokens before and after the blank, and its number of tokens n.  Output: token lists, best first.

    p(w | left, right) is taken as proportional to p(w | left) p(w | right) / p(w), w = w1 … wn,

as for a blank of one token. p(w | left) is the product of the forward probabilities of its tokens, each given the ones
before it, and p(w | right) that of the backward probabilities. p(w) is the probability of its first token in any text,
which is log-uniform in its rank, times the forward probabilities of the others in a text of these tokens only; the same
is done backward from the last token, and the mean of the logarithms is taken. Candidates come from two beam searches,
forward from the left context and backward from the right one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from elmokit.inference.scores import Scorer

WIDTH: Final = 48
REACH: Final = 48  # tokens of the context on each side that are read
MOST_TOKENS: Final = 8


@functools.lru_cache(maxsize=4)
def log_prior(num_words: int) -> Tensor:
    """(V,): log-probabilities, not normalized, of words in order of falling frequency by Zipf's law. Do not modify."""
    with torch.inference_mode(False):  # it is also read outside of the caller's inference mode
        ranks = torch.arange(num_words, dtype=torch.float64)
        return torch.log(torch.log1p(1 / (ranks + 1)))


def fill(
    scorer: Scorer, left: list[str], right: list[str], num_tokens: int, *, own: list[str] | None = None
) -> list[tuple[list[str], float]]:
    """Words of several tokens that fit between two contexts, best first.

    Args:
        scorer: A language model.
        left: Tokens before the blank.
        right: Tokens after it.
        num_tokens: Number of tokens of the blank.
        own: A word that is among the candidates in any case, if the vocabulary has its tokens.

    Returns:
        (tokens, log-probability), normalized over the candidates. Tokens of words are letters and digits only.

    Raises:
        ValueError: If the blank is too long.
    """
    if num_tokens > MOST_TOKENS:
        raise ValueError(f"the blank has {num_tokens} tokens: words of at most {MOST_TOKENS} tokens can be found")
    left, right = left[-REACH:], right[:REACH]
    is_word = torch.tensor([word.isalnum() for word in scorer.vocabulary.words])
    excluded = torch.zeros(len(is_word), dtype=torch.float64).masked_fill(~is_word, -torch.inf)
    candidates = {
        tuple(word)
        for word in (
            *_search(scorer, left, num_tokens, excluded, forward=True),
            *_search(scorer, right, num_tokens, excluded, forward=False),
        )
    }
    if own is not None and all(token in scorer.vocabulary for token in own):
        candidates.add(tuple(own))
    words = [list(word) for word in sorted(candidates)]
    scores = torch.tensor(_log_fit(scorer, words, left, right), dtype=torch.float64).log_softmax(dim=0)
    order = scores.argsort(descending=True, stable=True).tolist()
    return [(words[place], float(scores[place])) for place in order]


def _search(scorer: Scorer, context: list[str], num_tokens: int, excluded: Tensor, *, forward: bool) -> list[list[str]]:
    """The likeliest token lists after (or before) a context, by a beam search."""
    beam: list[list[str]] = [[]]
    totals = torch.zeros(1, dtype=torch.float64)
    vocabulary = scorer.vocabulary.words
    for _ in range(num_tokens):
        parts = [[*context, *word] if forward else [*word, *context] for word in beam]
        log_probs = (scorer.next_words(parts) if forward else scorer.previous_words(parts)) + excluded
        best = (totals[:, None] + log_probs).flatten().topk(min(WIDTH, int(torch.isfinite(log_probs).sum())))
        rows, words = best.indices // len(vocabulary), best.indices % len(vocabulary)
        pairs = list(zip(rows.tolist(), words.tolist(), strict=True))
        beam = [[*beam[row], vocabulary[word]] if forward else [vocabulary[word], *beam[row]] for row, word in pairs]
        totals = best.values
    return beam


def _log_fit(scorer: Scorer, words: list[list[str]], left: list[str], right: list[str]) -> list[float]:
    """log p(w | left) + log p(w | right) - log p(w) of each word, up to a constant."""
    inside = slice(len(left), len(left) + len(words[0]))
    prior = log_prior(len(scorer.vocabulary)).numpy()
    fits = []
    in_context = scorer.log_probs([[*left, *word, *right] for word in words])
    for word, context, bare in zip(words, in_context, scorer.log_probs(words), strict=True):
        first, last = prior[scorer.vocabulary.ids([word[0], word[-1]])]
        of_word = (first + bare.forward[1:].sum() + last + bare.backward[:-1].sum()) / 2
        fits.append(float(context.forward[inside].sum() + context.backward[inside].sum() - of_word))
    return fits
