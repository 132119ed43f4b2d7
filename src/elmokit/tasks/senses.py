"""Word senses: which of its meanings in WordNet a word has in a sentence.

Input: sentences whose words have sense keys (SemCor). Output: the sense keys of the words of other sentences.

A sense is the mean vector of its training instances in the view "sense" (`layers="sense"`), which looks at a word, or
at a phrase, from outside. A word takes the sense with the highest score,

    cosine(word, sense) + PRIOR log((count + 1/2) / (total + senses / 2)),

where `count` of the word's `total` training instances have this sense. A word that is not in the training data takes
its first sense in WordNet's sense index, if the task was trained with one.

In running text a form may be one of several words ("saw", "leaves"). Then two more terms choose between them: the same
prior of the word among the words of the form, and the cosine of the word in context and the mean of all senses of the
part of speech. A word that is not in the training data has UNSEEN times the latter in place of the cosine of a sense.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from elmokit.datasets import SenseInstance, SenseSentence, Word, read_sense_index, read_wsd, word_of_sense
from elmokit.inference.views import SENSE_VERSION, view_of
from elmokit.network import to_device
from elmokit.progress import format_count
from elmokit.tasks import metrics
from elmokit.tasks.inputs import Inputs
from elmokit.tasks.lemmas import FoundWord, WordFinder
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.texts import describe_span, read_tokens
from elmokit.text import TREEBANK, Tokenizer, check_tokens

PRIOR = 0.03  # weight of a sense's frequency, chosen by cross-validation inside SemCor
UNSEEN = 0.8  # chosen on documents of SemCor that were not trained on
KINDS = {"NOUN": "NOUN", "PROPN": "NOUN", "VERB": "VERB", "ADJ": "ADJ", "ADV": "ADV"}  # tags that have senses
FUNCTION_WORD_SHARE = 0.1  # a form that has a sense in fewer of its training occurrences is left out of text

SENTENCES_AT_ONCE = 512  # of the training data; within them the longest come first
ANNOTATED_IN_PART = ("NOUN", "ADJ", "ADV")  # half of SemCor has senses of verbs only

Counts = dict[str, dict[str, Any]]
"""Part of speech -> lemma -> a count, or counts: words as keys of JSON objects."""


@dataclass(frozen=True)
class SenseAnswer:
    """The sense of the word `tokens[start:end]`."""

    start: int
    end: int
    lemma: str
    pos: str
    sense: str | None
    """The sense key; None: the word is not known."""
    cosine: float | None
    """Cosine of the word and its sense; None if the word was not in the training data."""


@dataclass(frozen=True)
class _Candidate:
    """A sense that a word may have."""

    word: Word
    sense: str
    row: int
    """Row of the sense's vector, or of that of the part of speech if the word is not in the training data."""
    is_seen: bool
    prior: float


class NearestSense(nn.Module):
    """A word in context -> the nearest sense.

    Args:
        inputs: Holds the biLM.
        senses: For each word of the training data its senses, with their counts.
        first_senses: For each word of a sense index its first sense.
        finder: Finds words in running text.
    """

    def __init__(
        self,
        inputs: Inputs,
        senses: Mapping[Word, Mapping[str, int]],
        first_senses: Mapping[Word, str],
        finder: WordFinder,
    ) -> None:
        super().__init__()
        assert inputs.elmo is not None
        self.inputs, self.first_senses, self.finder = inputs, first_senses, finder
        self.view = view_of("sense", inputs.elmo.num_layers)
        self.candidates: dict[Word, list[_Candidate]] = {}
        self.rows: dict[tuple[Word, str], int] = {}
        for word, counts in senses.items():
            priors = _log_shares(list(counts.values()))
            for sense, prior in zip(counts, priors, strict=True):
                self.rows[word, sense] = len(self.rows)
                candidate = _Candidate(word, sense, self.rows[word, sense], True, prior)
                self.candidates.setdefault(word, []).append(candidate)
        kinds = sorted({pos for _, pos in [*senses, *first_senses]})
        self.kind_rows = {pos: len(self.rows) + number for number, pos in enumerate(kinds)}
        self.vectors: Tensor  # (senses + parts of speech, 2P), of length 1
        self.register_buffer("vectors", torch.zeros(len(self.rows) + len(kinds), inputs.elmo.dim, dtype=torch.float16))

    # ---- training ----

    def sums(self, examples: Sequence[SenseSentence], on_examples: Callable[[int], None]) -> Tensor:
        """The sum of the vectors of each sense's instances, (senses, 2P)."""
        total = torch.zeros(len(self.rows), self.vectors.shape[1])
        for begin in range(0, len(examples), SENTENCES_AT_ONCE):
            block = examples[begin : begin + SENTENCES_AT_ONCE]
            for number, vectors in self._embed(block, [_asked_words(sentence) for sentence in block]):
                pairs = [
                    (place, self.rows[one.word, sense])
                    for place, one in enumerate(block[number].instances)
                    for sense in one.senses
                ]
                places, rows = torch.tensor(pairs, dtype=torch.long).unbind(1)
                total.index_add_(0, rows, vectors.cpu()[places])
            on_examples(begin + len(block))
        return total

    def set_sums(self, sums: Tensor) -> None:
        """Set the vectors of senses and parts of speech. A sum has the direction of the mean."""
        vectors = normalize(sums, dim=-1)
        kinds = torch.tensor([self.kind_rows[pos] for (_, pos), _ in self.rows], dtype=torch.long) - len(vectors)
        kind_sums = torch.zeros(len(self.kind_rows), vectors.shape[1]).index_add_(0, kinds, vectors)
        self.vectors.copy_(torch.cat([vectors, normalize(kind_sums, dim=-1)]))

    def _embed(
        self, sentences: Sequence[SenseSentence], words: Sequence[Sequence[FoundWord]]
    ) -> Iterator[tuple[int, Tensor]]:
        """The number of each sentence that has words, and their vectors of length 1, (S, 2P)."""
        assert self.inputs.elmo is not None
        numbers = [number for number, found in enumerate(words) if found]
        readings = [sentences[number].as_words() for number in numbers]
        with torch.no_grad():
            for place, reading in self.inputs.elmo.readings([tokens for tokens, _ in readings]):
                offsets = torch.tensor(readings[place][1])
                spans = torch.tensor([(one.start, one.end) for one in words[numbers[place]]])
                start, end = offsets[spans].unbind(1)
                yield numbers[place], normalize(self.view.spans(reading, start, end)[0], dim=-1)

    # ---- prediction ----

    def predict(self, examples: Sequence[SenseSentence]) -> list[list[SenseAnswer]]:
        """The senses of each sentence: of its instances, or, without lemmas, of the words that are found in it."""
        words = [
            _asked_words(sentence) if sentence.lemmas else self.finder.find(sentence.tokens) for sentence in examples
        ]
        answers: list[list[SenseAnswer]] = [[] for _ in examples]
        for number, vectors in self._embed(examples, words):
            answers[number] = self._choose(words[number], vectors)
        return answers

    def _choose(self, words: Sequence[FoundWord], vectors: Tensor) -> list[SenseAnswer]:
        """The sense with the highest score of each of S words, whose vectors are (S, 2P)."""
        candidates = [(place, one) for place, word in enumerate(words) for one in self._candidates_of(word)]
        places, rows, kinds = to_device(
            torch.tensor(
                [(place, one.row, self.kind_rows[one.word[1]]) for place, one in candidates], dtype=torch.long
            ).reshape(-1, 3),
            vectors.device,
        ).unbind(1)
        cosines, kind_cosines = (
            (vectors[places] * self.vectors[chosen].float()).sum(dim=-1).tolist() for chosen in (rows, kinds)
        )
        best: dict[int, tuple[float, SenseAnswer]] = {}
        for (place, one), cosine, kind_cosine in zip(candidates, cosines, kind_cosines, strict=True):
            score = (cosine if one.is_seen else UNSEEN * cosine) + kind_cosine + one.prior
            if place not in best or score > best[place][0]:
                start, end = words[place].start, words[place].end
                best[place] = score, SenseAnswer(start, end, *one.word, one.sense, cosine if one.is_seen else None)
        return [
            best[place][1] if place in best else SenseAnswer(word.start, word.end, *next(iter(word.counts)), None, None)
            for place, word in enumerate(words)
        ]

    def _candidates_of(self, word: FoundWord) -> list[_Candidate]:
        """The senses that a word may have. The prior of each word among the words of a form is added to theirs."""
        known = [one for one in word.counts if one in self.candidates or one in self.first_senses]
        candidates: list[_Candidate] = []
        for name, prior in zip(known, _log_shares([word.counts[one] for one in known]), strict=True):
            if name in self.candidates:
                candidates += [replace(one, prior=one.prior + prior) for one in self.candidates[name]]
            else:
                row = self.kind_rows[name[1]]
                candidates.append(_Candidate(name, self.first_senses[name], row, False, prior))
        return candidates


def _log_shares(counts: Sequence[int]) -> list[float]:
    """PRIOR times the logarithm of the smoothed share of each count."""
    total = sum(counts) + len(counts) / 2
    return [PRIOR * math.log((count + 0.5) / total) for count in counts]


def _asked_words(sentence: SenseSentence) -> list[FoundWord]:
    return [FoundWord(one.index, one.index + 1, {one.word: 1}) for one in sentence.instances]


@dataclass(frozen=True)
class Senses:
    """Word senses as a task (`task.Task`, with `task.HasResources`)."""

    metric: str = "f1"
    suffixes: tuple[str, ...] = (".data.xml",)
    requirements: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[SenseSentence]:
        """Read the XML of the all-words WSD framework, with the key file beside it."""
        sentences = read_wsd(path)
        instances = [one for sentence in sentences for one in sentence.instances]
        if not instances:
            raise ValueError(f"{path}: no <instance> in this file: there is no word whose sense is known")
        if not instances[0].senses:
            name = Path(path).name.removesuffix(".gz").removesuffix(".xml").removesuffix(".data")
            raise ValueError(f"{path}: no sense keys: put the file {name}.gold.key.txt beside it")
        return sentences

    def sentences(self, example: SenseSentence) -> list[list[str]]:
        """The tokens, as the biLM reads them."""
        return [example.as_words()[0]]

    def fit(self, examples: Sequence[SenseSentence]) -> dict[str, Any]:
        """The senses of each word, what each form is, and function words."""
        senses: dict[Word, Counter[str]] = {}
        forms: dict[str, Counter[Word]] = {}
        without_sense: Counter[str] = Counter()
        for sentence in examples:
            with_sense = {one.index for one in sentence.instances}
            for index, (token, tag) in enumerate(zip(sentence.tokens, sentence.pos, strict=True)):
                if index not in with_sense and tag not in ANNOTATED_IN_PART:
                    without_sense[token.lower()] += 1
            for one in sentence.instances:
                senses.setdefault(one.word, Counter()).update(one.senses)
                forms.setdefault(sentence.tokens[one.index].lower(), Counter())[one.word] += 1
        function_words = []
        for form, count in without_sense.items():
            num_senses = forms.get(form, Counter[Word]()).total()
            # one more, so that a rare form, whose sense may be missing by accident, is not taken for a function word
            if num_senses + 1 < FUNCTION_WORD_SHARE * (num_senses + count + 1) and any(map(str.isalnum, form)):
                function_words.append(form)
        return {
            "view_version": SENSE_VERSION,
            "senses": _to_json(senses),
            "forms": {form: _to_json(words) for form, words in sorted(forms.items())},
            "function_words": sorted(function_words),
        }

    def resources(self, config: TaskConfig) -> dict[str, Any]:
        """The first senses of the sense index. Settings of a network are refused."""
        for name, expected in {"elmo_at": "input", "tune": False, "vectors": "trained"}.items():
            value = getattr(config, name)
            if value != expected:
                raise ValueError(
                    f"{name} is {value!r}, but the task {config.task} compares vectors of the biLM and trains no "
                    f"network: leave {name} out; it has no variants to compare"
                )
        index = {} if config.sense_index is None else read_sense_index(config.sense_index)
        return {"first_senses": sorted(senses[0] for senses in index.values())}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> NearestSense:
        """The network. It reads the biLM only: it has no other inputs, and no mixes."""
        assert inputs.elmo is not None
        version = fitted.get("view_version", 1)
        if version != SENSE_VERSION:
            raise ValueError(
                f'the task was trained with version {version} of the view "sense", and this is version '
                f"{SENSE_VERSION}, which has other vectors: train the task again"
            )
        inputs.elmo.mixes = nn.ModuleList()
        only_bilm = Inputs(words=(), word_dim=0, static=None, char_dim=0, elmo=inputs.frozen, dropout=0.0)
        senses = _from_json(fitted["senses"])
        first_senses = {word_of_sense(sense): sense for sense in fitted["first_senses"]}
        forms = {form: _from_json(words) for form, words in fitted["forms"].items()}
        finder = WordFinder({**senses, **first_senses}, forms, fitted["function_words"])
        return NearestSense(only_bilm, senses, first_senses, finder)

    def score(self, examples: Sequence[SenseSentence], predictions: Sequence[list[SenseAnswer]]) -> dict[str, float]:
        """F1 of senses."""
        gold = [one.senses for sentence in examples for one in sentence.instances]
        return metrics.sense_f1(gold, [answer.sense for answers in predictions for answer in answers])

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> SenseSentence:
        """A sentence as `read_tokens` takes it, or a mapping with `tokens`, `lemmas` and `pos`."""
        if not isinstance(text, Mapping) or not {"lemmas", "pos"} & text.keys():
            return SenseSentence("", read_tokens(text, tokenizer), [], [], [])
        if text.keys() != {"tokens", "lemmas", "pos"}:
            raise ValueError(f'{dict(text)!r:.100}: expected {{"tokens": […], "lemmas": […], "pos": […]}}')
        tokens, lemmas, tags = (
            check_tokens(text[name], name, "a list of strings") for name in ("tokens", "lemmas", "pos")
        )
        if not len(tokens) == len(lemmas) == len(tags):
            counts = f"{format_count(len(tokens), 'token')}, {format_count(len(lemmas), 'lemma')}, {len(tags)} pos"
            raise ValueError(f"{counts}: pass one of each per token")
        instances = [
            SenseInstance("", index, lemma.replace(" ", "_"), KINDS[tag], ())
            for index, (lemma, tag) in enumerate(zip(lemmas, tags, strict=True))
            if tag in KINDS
        ]
        return SenseSentence("", tokens, lemmas, tags, instances)

    def to_json(self, example: SenseSentence, prediction: list[SenseAnswer]) -> dict[str, Any]:
        """The tokens, and the words that have a sense: tokens[start:end], lemma, part of speech, sense key, cosine."""
        return {
            "tokens": example.tokens,
            "senses": [
                {
                    **describe_span(example.tokens, (one.start, one.end)),
                    "lemma": one.lemma,
                    "pos": one.pos,
                    "sense": one.sense,
                    "cosine": one.cosine,
                }
                for one in prediction
                if one.sense is not None
            ],
        }


def _to_json(words: Mapping[Word, Any]) -> Counts:
    """A mapping from words as nested objects of JSON."""
    counts: Counts = {}
    for (lemma, pos), value in sorted(words.items(), key=lambda item: item[0]):
        counts.setdefault(pos, {})[lemma] = value
    return counts


def _from_json(counts: Counts) -> dict[Word, Any]:
    return {(lemma, pos): value for pos, lemmas in counts.items() for lemma, value in lemmas.items()}


WSD = Senses()
