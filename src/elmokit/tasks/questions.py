"""The answer to a question, as a span of a paragraph (SQuAD).

Input: a context, a question and, for training, the answers of one or more annotators. Output: the answer as it is in
the context, `context[start:end]`, and its probability. The network is that of Clark and Gardner (2018), an improved
bidirectional attention flow (Seo et al., 2017), which the paper uses: encode both texts, attend in both directions,
attend from the context to itself, and point at the first and at the last token of the answer.

A context is cut into sentences for the biLM, and these are joined again before the network's own LSTMs. A context
longer than `WINDOW_TOKENS` is read in overlapping windows: training reads the one with the answer, prediction reads all
of them and takes the best answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.datasets import read_squad
from elmokit.tasks import metrics
from elmokit.tasks.batches import on_device, round_up
from elmokit.tasks.inputs import Collected, Inputs
from elmokit.tasks.layers import NEVER, BiLSTM, LockedDropout, masked_softmax
from elmokit.tasks.settings import TaskConfig
from elmokit.text import TREEBANK, Tokenizer

WINDOW_TOKENS, WINDOW_STEP = 400, 200  # a step of half a window: any answer up to 200 tokens is complete in one of them
ANSWER_TOKENS = 30  # length of the longest answer that is predicted
EXPECTED = 'a context and a question as {"context": …, "question": …}, or as text: the question, a tab, the context'

Spans = list[tuple[int, int]]
"""(start, end) in tokens, or in characters; the end is excluded."""


@dataclass(frozen=True, slots=True)
class TokenizedQuestion:
    """A question on a context, both in tokens, with its answers if they are known."""

    context: str
    question: str
    sentences: list[list[str]]
    """The context in tokens; one sentence without tokens if the context has none."""
    offsets: Spans
    """Position of each token in the context, in characters; the tokens of all sentences in a row."""
    question_tokens: list[str]
    answers: list[str]
    spans: Spans
    """The distinct answers as spans of the tokens of all sentences in a row: tokens with a character of the answer."""


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """`text == context[start:end]`; the answer is empty if the context has no tokens."""

    text: str
    start: int
    end: int
    probability: float
    """Its probability among all answers of its window."""


# ---- the network -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """What the host collects of B questions and of the W windows of their contexts."""

    windows: Collected
    questions: Collected
    question: Tensor
    """(W,): the question of a window."""


@dataclass(frozen=True)
class QuestionBatch:
    """What the host collects of B questions to train on, with one window each."""

    texts: Texts
    answers: Tensor
    """(B, A, 2): the first and the last token of each answer in its window; -1 where there are fewer."""


class AttentionFlow(nn.Module):
    """Context and question -> mutual attention -> attention of the context on itself -> first and last token.

    Args:
        inputs: The vectors of tokens.
        hidden_dim: Units of each biLSTM per direction.
        num_layers: Layers of the first biLSTM.
        dropout: Dropout of all layers.
    """

    def __init__(self, inputs: Inputs, *, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.inputs = inputs
        self.encoder = BiLSTM(inputs.input_dim, hidden_dim, num_layers=num_layers, dropout=dropout)
        encoded_dim, width = self.encoder.output_dim + inputs.output_dim, 2 * hidden_dim
        self.flow, self.merge_flow = Similarity(encoded_dim), nn.Linear(4 * encoded_dim, width)
        self.reader = BiLSTM(width, hidden_dim, dropout=dropout)
        self.reflection, self.merge_reflection = Similarity(width), nn.Linear(3 * width, width)
        self.first_rnn, self.first = BiLSTM(width, hidden_dim, dropout=dropout), nn.Linear(width, 1)
        self.last_rnn, self.last = BiLSTM(2 * width, hidden_dim, dropout=dropout), nn.Linear(width, 1)
        self.dropout = LockedDropout(dropout)

    def _collect(
        self, examples: Sequence[TokenizedQuestion], windows: Sequence[Spans], *, rounded: bool = False
    ) -> Texts:
        """Collect questions, and windows of each context: the sentences joined again, one row per window."""
        sentences = list(chain.from_iterable(example.sentences for example in examples))
        firsts = accumulate((len(example.offsets) for example in examples[:-1]), initial=0)  # in all tokens
        spans = [(first + begin, first + end) for first, own in zip(firsts, windows, strict=True) for begin, end in own]
        return Texts(
            windows=self.inputs.collect(sentences, spans, rounded=rounded),
            questions=self.inputs.collect([example.question_tokens for example in examples], rounded=rounded),
            question=torch.tensor([row for row, own in enumerate(windows) for _ in own]),
        )

    def _scores(self, texts: Texts) -> tuple[Tensor, Tensor]:
        """Two (W, T): the score of each token of each window as the first of the answer, and as the last."""
        context, question = self.inputs.embed(texts.windows), self.inputs.embed(texts.questions)
        mask = context.mask  # (W, T)
        c = torch.cat([self.encoder(context.x, mask), context.output], dim=-1)  # (W, T, E)
        q = torch.cat([self.encoder(question.x, question.mask), question.output], dim=-1)  # (B, Q, E)
        q, q_mask = q[texts.question], question.mask[texts.question]  # (W, Q, E), (W, Q)

        similar = self.flow(c, q)  # (W, T, Q)
        asked = masked_softmax(similar, q_mask.unsqueeze(1)) @ q  # (W, T, E)
        most_similar = similar.masked_fill(~q_mask.unsqueeze(1), NEVER).amax(dim=2)  # (W, T)
        most_similar = most_similar * q_mask.any(dim=1, keepdim=True)  # all equal for a question without tokens
        central = masked_softmax(most_similar, mask).unsqueeze(1) @ c  # (W, 1, E)
        x = torch.relu(self.merge_flow(torch.cat([c, asked, c * asked, c * central], dim=-1)))  # (W, T, 2H)

        read = self.reader(self.dropout(x), mask)
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        attended = masked_softmax(self.reflection(read, read), mask.unsqueeze(1) & ~itself) @ read
        x = self.dropout(x + torch.relu(self.merge_reflection(torch.cat([read, attended, read * attended], dim=-1))))

        first = self.first_rnn(x, mask)
        last = self.last_rnn(torch.cat([x, first], dim=-1), mask)
        return (
            self.first(first).squeeze(-1).masked_fill(~mask, NEVER),
            self.last(last).squeeze(-1).masked_fill(~mask, NEVER),
        )

    def loss(self, examples: Sequence[TokenizedQuestion]) -> Tensor:
        """The mean negative log-probability of the gold answers together."""
        return self.loss_of(on_device(self.collect(examples), self.inputs.device))

    def collect(self, examples: Sequence[TokenizedQuestion], *, rounded: bool = False) -> QuestionBatch:
        """See `HasBatches`."""
        windows = [_training_window(example) for example in examples]
        texts = self._collect(examples, [[window] for window in windows], rounded=rounded)
        golds = [
            [(start - begin, min(stop, end) - 1 - begin) for start, stop in example.spans if begin <= start < end]
            for example, (begin, end) in zip(examples, windows, strict=True)
        ]
        most = max(map(len, golds))
        if rounded:
            most = round_up(most, 4)
        return QuestionBatch(texts, torch.tensor([gold + [(-1, -1)] * (most - len(gold)) for gold in golds]))

    def loss_of(self, batch: QuestionBatch) -> Tensor:
        """See `HasBatches`."""
        first, last = self._scores(batch.texts)
        firsts, lasts = batch.answers.clamp(min=0).unbind(dim=2)  # (B, A) each
        likelihoods = first.log_softmax(dim=1).gather(1, firsts) + last.log_softmax(dim=1).gather(1, lasts)
        return -likelihoods.masked_fill(batch.answers[:, :, 0] < 0, NEVER).logsumexp(dim=1).mean()

    def predict(self, examples: Sequence[TokenizedQuestion]) -> list[FoundAnswer]:
        """The best answer to each question."""
        windows = [_windows(len(example.offsets)) for example in examples]
        first, last = self._scores(on_device(self._collect(examples, windows), self.inputs.device))
        best = best_spans(first, last)
        probabilities = (best.score - first.logsumexp(dim=1) - last.logsumexp(dim=1)).exp()
        rows = zip(*(t.tolist() for t in (best.score, best.first, best.last, probabilities)), strict=True)
        answers = []
        for example, own in zip(examples, windows, strict=True):
            candidates = [(next(rows), begin) for begin, _ in own]
            (_, start, stop, probability), begin = max(candidates, key=lambda one: one[0][0])
            if not example.offsets:
                answers.append(FoundAnswer("", 0, 0, 0.0))
                continue
            start, stop = example.offsets[begin + start][0], example.offsets[begin + stop][1]
            answers.append(FoundAnswer(example.context[start:stop], start, stop, probability))
        return answers


class Similarity(nn.Module):
    """Similarity of tokens: w · [a; b; a * b], without building that triple.

    Args:
        dim: Width D of a token.
    """

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
    """The best span of each row: its first and its last token, and the sum of their scores; (B,) each."""

    first: Tensor
    last: Tensor
    score: Tensor


def best_spans(first: Tensor, last: Tensor, longest: int = ANSWER_TOKENS) -> BestSpans:
    """Find the best span of each row.

    Args:
        first: (B, T), the score of each token as the first of the span.
        last: (B, T), the score of each token as the last of the span.
        longest: Largest number of tokens of a span.
    """
    ahead = nn.functional.pad(last, (0, longest - 1), value=2 * NEVER).unfold(1, longest, 1)  # (B, T, longest)
    score, place = (first.unsqueeze(2) + ahead).flatten(1).max(dim=1)
    return BestSpans(place // longest, place // longest + place % longest, score)


def _windows(num_tokens: int) -> Spans:
    """Windows of at most `WINDOW_TOKENS` that cover a context; one empty window if it has no tokens."""
    begins = range(0, max(1, num_tokens - WINDOW_TOKENS + WINDOW_STEP), WINDOW_STEP)
    return [(begin, min(begin + WINDOW_TOKENS, num_tokens)) for begin in begins]


def _training_window(example: TokenizedQuestion) -> tuple[int, int]:
    """The first window that contains the first answer, completely if one does, else from its first token."""
    start, stop = example.spans[0]
    holding = [(begin, end) for begin, end in _windows(len(example.offsets)) if begin <= start < end]
    return next((window for window in holding if stop <= window[1]), holding[-1])


# ---- the task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions:
    """Question answering as a task (`task.Task`)."""

    metric: str = "f1"
    suffixes: tuple[str, ...] = (".json",)
    requirements: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[TokenizedQuestion]:
        """Read SQuAD v1.1 JSON."""
        contexts: dict[str, tuple[list[list[str]], Spans]] = {}  # many questions share one
        examples = []
        for entry in read_squad(path):
            if entry.context not in contexts:
                contexts[entry.context] = _tokenize_context(entry.context, tokenizer)
            sentences, offsets = contexts[entry.context]
            spans = []
            for answer in entry.answers:
                # tokens that end before the answer begins; tokens that begin before it ends
                start = bisect_right(offsets, answer.start, key=lambda offset: offset[1])
                stop = bisect_left(offsets, answer.start + len(answer.text), key=lambda offset: offset[0])
                if start >= stop:
                    raise ValueError(f"{path}, question {entry.id}: the answer {answer.text!r} contains no token")
                spans.append((start, stop))
            examples.append(
                TokenizedQuestion(
                    context=entry.context,
                    question=entry.question,
                    sentences=sentences,
                    offsets=offsets,
                    question_tokens=tokenizer(entry.question),
                    answers=[answer.text for answer in entry.answers],
                    spans=list(dict.fromkeys(spans)),
                )
            )
        return examples

    def sentences(self, example: TokenizedQuestion) -> list[list[str]]:
        """The sentences of the context, and the question."""
        return [*example.sentences, example.question_tokens]

    def fit(self, examples: Sequence[TokenizedQuestion]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> AttentionFlow:
        """The network."""
        return AttentionFlow(inputs, hidden_dim=config.hidden_dim, num_layers=config.num_layers, dropout=config.dropout)

    def score(self, examples: Sequence[TokenizedQuestion], predictions: Sequence[FoundAnswer]) -> dict[str, float]:
        """Exact match and F1 of SQuAD."""
        return metrics.answer_scores([example.answers for example in examples], [answer.text for answer in predictions])

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> TokenizedQuestion:
        """A mapping of context and question; or a string with a tab between them, the question first."""
        if isinstance(text, str) and ("\t" in text or not text):
            question, _, context = text.partition("\t")
        elif isinstance(text, Mapping) and set(text) == {"context", "question"}:
            question, context = text["question"], text["context"]
        else:
            raise ValueError(f"{text!r:.100}: expected {EXPECTED}")
        if not (isinstance(question, str) and isinstance(context, str)):
            raise ValueError(f"{text!r:.100}: context and question must both be strings")
        sentences, offsets = _tokenize_context(context, tokenizer)
        return TokenizedQuestion(context, question, sentences, offsets, tokenizer(question), [], [])

    def to_json(self, example: TokenizedQuestion, prediction: FoundAnswer) -> dict[str, Any]:
        """The answer, its position in characters (`context[start:end]`), its probability, question and context."""
        return {
            "question": example.question,
            "context": example.context,
            "answer": prediction.text,
            "start": prediction.start,
            "end": prediction.end,
            "probability": prediction.probability,
        }


def _tokenize_context(context: str, tokenizer: Tokenizer) -> tuple[list[list[str]], Spans]:
    """The sentences in tokens, and the position of each token."""
    sentences = tokenizer.sentences(context) or [[]]
    offsets = [(token.start, token.end) for token in chain.from_iterable(sentences)]
    return [[token.text for token in sentence] for sentence in sentences], offsets


QUESTIONS = Questions(defaults={"hidden_dim": 100, "dropout": 0.2, "batch_size": 32, "epochs": 20, "patience": 4})
