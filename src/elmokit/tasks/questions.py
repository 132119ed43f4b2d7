"""The answer to a question, as a piece of the paragraph that it is asked of (SQuAD).

Enters: a context, a question and, to learn from, the answers of one or more annotators.  Leaves: the answer as it
stands in the context, `context[start:end]`, and how probable it is.  The network is that of Clark and Gardner (2018),
whose improvement of bidirectional attention flow (Seo et al., 2017) the paper uses: encode both texts, attend both
ways, attend from the context to itself, and point at the first and at the last token of the answer.

A context is cut into sentences, which is what a biLM reads, and these are joined again before the network's own
LSTMs.  One that is longer than `WINDOW_TOKENS` is read in windows that overlap: in training the one that holds the
answer, in prediction all of them, the best of all answers being the answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from elmokit import datasets as readers
from elmokit.network import to_device
from elmokit.tasks import metrics
from elmokit.tasks.inputs import Embedded, Inputs, lay_out
from elmokit.tasks.layers import NEVER, BiLSTM, LockedDropout, masked_softmax
from elmokit.tasks.settings import TaskConfig
from elmokit.text import tokenize, tokenize_sentences

WINDOW_TOKENS, WINDOW_STEP = 400, 200  # a step of half a window: any answer up to 200 tokens is whole in one of them
ANSWER_TOKENS = 30  # the longest answer that is predicted
EXPECTED = 'a context and a question as {"context": …, "question": …}, or as text: the question, a tab, the context'

Spans = list[tuple[int, int]]
"""Half-open stretches of tokens, or of characters."""


@dataclass(frozen=True, slots=True)
class TokenizedQuestion:
    """A question on a context, both in tokens, with its answers where they are known."""

    context: str
    question: str
    sentences: list[list[str]]
    """The context in tokens; one sentence without tokens where the context has none."""
    offsets: Spans
    """Where each token of all sentences in a row stands in the context, in characters."""
    question_tokens: list[str]
    answers: list[str]
    spans: Spans
    """The distinct answers in tokens of all sentences in a row: those that hold a character of the answer."""


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """`text == context[start:end]`; of a context without tokens the answer is empty."""

    text: str
    start: int
    end: int
    probability: float
    """Among all answers of its window."""


# ---- the network -----------------------------------------------------------------------------------------------------


class AttentionFlow(nn.Module):
    """Context and question -> attention both ways -> attention of the context on itself -> first and last token."""

    def __init__(self, inputs: Inputs, *, config: TaskConfig) -> None:
        super().__init__()
        self.inputs = inputs
        hidden_dim, dropout = config.hidden_dim, config.dropout
        self.encoder = BiLSTM(inputs.input_dim, hidden_dim, num_layers=config.num_layers, dropout=dropout)
        encoded_dim, width = self.encoder.output_dim + inputs.output_dim, 2 * hidden_dim
        self.flow, self.merge_flow = Similarity(encoded_dim), nn.Linear(4 * encoded_dim, width)
        self.reader = BiLSTM(width, hidden_dim, dropout=dropout)
        self.reflection, self.merge_reflection = Similarity(width), nn.Linear(3 * width, width)
        self.first_rnn, self.first = BiLSTM(width, hidden_dim, dropout=dropout), nn.Linear(width, 1)
        self.last_rnn, self.last = BiLSTM(2 * width, hidden_dim, dropout=dropout), nn.Linear(width, 1)
        self.dropout = LockedDropout(dropout)

    def _scores(self, examples: Sequence[TokenizedQuestion], windows: Sequence[Spans]) -> tuple[Tensor, Tensor]:
        """How well each token of each window is the first of the answer, and the last: two (W, T)."""
        context = self._embed_windows(examples, windows)
        question = self.inputs([example.question_tokens for example in examples])
        mask = context.mask  # (W, T)
        c = torch.cat([self.encoder(context.x, mask), context.output], dim=-1)  # (W, T, E)
        q = torch.cat([self.encoder(question.x, question.mask), question.output], dim=-1)  # (B, Q, E)
        rows = to_device(torch.tensor([row for row, own in enumerate(windows) for _ in own]), mask.device)
        q, q_mask = q[rows], question.mask[rows]  # (W, Q, E), (W, Q)

        similar = self.flow(c, q)  # (W, T, Q)
        asked = masked_softmax(similar, q_mask.unsqueeze(1)) @ q  # (W, T, E)
        likest = similar.masked_fill(~q_mask.unsqueeze(1), NEVER).amax(dim=2)  # (W, T)
        likest = likest * q_mask.any(dim=1, keepdim=True)  # all alike to a question without tokens
        central = masked_softmax(likest, mask).unsqueeze(1) @ c  # (W, 1, E)
        x = torch.relu(self.merge_flow(torch.cat([c, asked, c * asked, c * central], dim=-1)))  # (W, T, 2H)

        read = self.reader(self.dropout(x), mask)
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        met = masked_softmax(self.reflection(read, read), mask.unsqueeze(1) & ~itself) @ read
        x = self.dropout(x + torch.relu(self.merge_reflection(torch.cat([read, met, read * met], dim=-1))))

        first = self.first_rnn(x, mask)
        last = self.last_rnn(torch.cat([x, first], dim=-1), mask)
        return (
            self.first(first).squeeze(-1).masked_fill(~mask, NEVER),
            self.last(last).squeeze(-1).masked_fill(~mask, NEVER),
        )

    def _embed_windows(self, examples: Sequence[TokenizedQuestion], windows: Sequence[Spans]) -> Embedded:
        """The sentences of each context in one row again, or in several: each window of it is a row."""
        sentences = list(chain.from_iterable(example.sentences for example in examples))
        tokens = self.inputs.tokens(sentences)  # of all contexts, one behind the other
        begun = accumulate((len(example.offsets) for example in examples[:-1]), initial=0)
        bounds = torch.tensor(
            [(here + begin, here + end) for here, own in zip(begun, windows, strict=True) for begin, end in own]
        )
        num_tokens = bounds[:, 1] - bounds[:, 0]
        steps = torch.arange(max(1, int(num_tokens.max())))
        mask = steps < num_tokens.unsqueeze(1)  # (W, T)
        places = to_device((bounds[:, :1] + steps)[mask], self.inputs.device)
        x, output = (lay_out(vectors.index_select(0, places), mask) for vectors in (tokens.x, tokens.output))
        return Embedded(x, to_device(mask, self.inputs.device), output)

    def loss(self, examples: Sequence[TokenizedQuestion]) -> Tensor:
        """Minus the log-probability that any of the gold answers is pointed at."""
        windows = [_training_window(example) for example in examples]
        first, last = self._scores(examples, [[window] for window in windows])
        golds = [
            [(start - begin, min(stop, end) - 1 - begin) for start, stop in example.spans if begin <= start < end]
            for example, (begin, end) in zip(examples, windows, strict=True)
        ]
        most = max(map(len, golds))
        spans = to_device(torch.tensor([gold + [(-1, -1)] * (most - len(gold)) for gold in golds]), first.device)
        firsts, lasts = spans.clamp(min=0).unbind(dim=2)  # (B, answers) each
        likelihoods = first.log_softmax(dim=1).gather(1, firsts) + last.log_softmax(dim=1).gather(1, lasts)
        return -likelihoods.masked_fill(spans[:, :, 0] < 0, NEVER).logsumexp(dim=1).mean()

    def predict(self, examples: Sequence[TokenizedQuestion]) -> list[FoundAnswer]:
        """The best answer to each question."""
        windows = [_windows(len(example.offsets)) for example in examples]
        first, last = self._scores(examples, windows)
        best = best_spans(first, last)
        probabilities = (best.score - first.logsumexp(dim=1) - last.logsumexp(dim=1)).exp()
        rows = zip(*(t.tolist() for t in (best.score, best.first, best.last, probabilities)), strict=True)
        answers = []
        for example, own in zip(examples, windows, strict=True):
            found = [(next(rows), begin) for begin, _ in own]
            (_, start, stop, probability), begin = max(found, key=lambda one: one[0][0])
            if not example.offsets:
                answers.append(FoundAnswer("", 0, 0, 0.0))
                continue
            start, stop = example.offsets[begin + start][0], example.offsets[begin + stop][1]
            answers.append(FoundAnswer(example.context[start:stop], start, stop, probability))
        return answers


class Similarity(nn.Module):
    """How alike tokens are: w · [a; b; a * b], without ever building that triple."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(dim, 1, bias=False), nn.Linear(dim, 1, bias=False)
        self.both = nn.Parameter(torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """(B, S, D), (B, T, D) -> (B, S, T)."""
        scores: Tensor = self.a(a) + self.b(b).transpose(1, 2) + (a * self.both) @ b.transpose(1, 2)
        return scores


@dataclass(frozen=True)
class BestSpans:
    """Of each row the best span: its first and its last token, and the sum of their scores; (B,) each."""

    first: Tensor
    last: Tensor
    score: Tensor


def best_spans(first: Tensor, last: Tensor, longest: int = ANSWER_TOKENS) -> BestSpans:
    """(B, T) scores of first and of last tokens -> the best spans of at most `longest` tokens."""
    ahead = nn.functional.pad(last, (0, longest - 1), value=2 * NEVER).unfold(1, longest, 1)  # (B, T, longest)
    score, place = (first.unsqueeze(2) + ahead).flatten(1).max(dim=1)
    return BestSpans(place // longest, place // longest + place % longest, score)


def _windows(num_tokens: int) -> Spans:
    """Stretches of at most `WINDOW_TOKENS` that cover a context; without tokens there is one, which is empty."""
    begins = range(0, max(1, num_tokens - WINDOW_TOKENS + WINDOW_STEP), WINDOW_STEP)
    return [(begin, min(begin + WINDOW_TOKENS, num_tokens)) for begin in begins]


def _training_window(example: TokenizedQuestion) -> tuple[int, int]:
    """The first window that holds the first answer: whole where it can, else from its first token on."""
    start, stop = example.spans[0]
    holding = [(begin, end) for begin, end in _windows(len(example.offsets)) if begin <= start < end]
    return next((window for window in holding if stop <= window[1]), holding[-1])


# ---- the task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions:
    """Question answering as a task (`task.Task`)."""

    metric: str = "f1"
    suffixes: tuple[str, ...] = (".json",)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str) -> list[TokenizedQuestion]:
        """SQuAD v1.1 JSON."""
        contexts: dict[str, tuple[list[list[str]], Spans]] = {}  # many questions share one
        examples = []
        for entry in readers.read_squad(path):
            if entry.context not in contexts:
                contexts[entry.context] = _tokenize_context(entry.context)
            sentences, offsets = contexts[entry.context]
            spans = []
            for answer in entry.answers:
                # tokens that end before the answer begins; tokens that begin before it ends
                start = bisect_right(offsets, answer.start, key=lambda offset: offset[1])
                stop = bisect_left(offsets, answer.start + len(answer.text), key=lambda offset: offset[0])
                if start >= stop:
                    raise ValueError(f"{path}, question {entry.id}: the answer {answer.text!r} holds no token")
                spans.append((start, stop))
            examples.append(
                TokenizedQuestion(
                    context=entry.context,
                    question=entry.question,
                    sentences=sentences,
                    offsets=offsets,
                    question_tokens=tokenize(entry.question),
                    answers=[answer.text for answer in entry.answers],
                    spans=list(dict.fromkeys(spans)),
                )
            )
        return examples

    def sentences(self, example: TokenizedQuestion) -> list[list[str]]:
        """Those of the context, and the question."""
        return [*example.sentences, example.question_tokens]

    def fit(self, examples: Sequence[TokenizedQuestion]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> AttentionFlow:
        """The network."""
        return AttentionFlow(inputs, config=config)

    def score(self, examples: Sequence[TokenizedQuestion], predictions: Sequence[FoundAnswer]) -> dict[str, float]:
        """Exact match and F1, as SQuAD counts them."""
        return metrics.answer_scores([example.answers for example in examples], [found.text for found in predictions])

    def from_text(self, given: Any) -> TokenizedQuestion:
        """A mapping of context and question; or text with a tab between them, the question first."""
        if isinstance(given, str) and ("\t" in given or not given):
            question, _, context = given.partition("\t")
        elif isinstance(given, Mapping) and set(given) == {"context", "question"}:
            question, context = given["question"], given["context"]
        else:
            raise ValueError(f"{given!r:.100}: expected {EXPECTED}")
        if not (isinstance(question, str) and isinstance(context, str)):
            raise ValueError(f"{given!r:.100}: context and question must both be text")
        sentences, offsets = _tokenize_context(context)
        return TokenizedQuestion(context, question, sentences, offsets, tokenize(question), [], [])

    def to_json(self, example: TokenizedQuestion, prediction: FoundAnswer) -> dict[str, Any]:
        """The answer, its place in characters (`context[start:end]`), its probability, and what was asked."""
        return {
            "question": example.question,
            "context": example.context,
            "answer": prediction.text,
            "start": prediction.start,
            "end": prediction.end,
            "probability": prediction.probability,
        }


def _tokenize_context(context: str) -> tuple[list[list[str]], Spans]:
    """The sentences in tokens, and where each token of all sentences in a row stands."""
    sentences = tokenize_sentences(context) or [[]]
    offsets = [(token.start, token.end) for token in chain.from_iterable(sentences)]
    return [[token.text for token in sentence] for sentence in sentences], offsets


QUESTIONS = Questions(defaults={"hidden_dim": 100, "dropout": 0.2, "batch_size": 32, "epochs": 20, "patience": 4})
