"""The data of a run and its initial model.

Input: the settings of a run, and the files of a model to fine-tune, if any.  Output: the vocabulary, the prepared
corpora (in the run's folder, unless they were prepared before), and a `LanguageModel` with its initial weights.
`check_input` finds out what is wrong with the input before anything is written.

A vocabulary with other words than that of the model to fine-tune keeps the rows of the output layer of words that both
have. A new word starts between the row of <UNK>, which the model predicted in its place, and the rows of the known
words whose context-free vectors are nearest; its bias is an equal part of the probability of <UNK>.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from elmokit.config import BiLMConfig
from elmokit.corpus import Corpus, build_vocabulary, prepare
from elmokit.corpus.sources import check_packages, find_files, tokenizer_of
from elmokit.network import BiLM
from elmokit.pretraining.settings import PretrainConfig
from elmokit.pretraining.step import LanguageModel
from elmokit.storage.folder import ModelFiles
from elmokit.text import Vocabulary

logger = logging.getLogger(__name__)

NUM_NEIGHBOURS = 10  # known words whose rows a new word starts from
MAX_KNOWN_WORDS = 100_000  # neighbours are among this many of the most frequent known words
WORDS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Data:
    """The text of a run, prepared with its vocabulary."""

    vocabulary: Vocabulary
    train: Corpus
    heldout: Corpus | None


def check_input(config: PretrainConfig, model: BiLMConfig, initial: ModelFiles | None) -> None:
    """Check the input of a run, as far as that is possible without reading the text. Nothing is written.

    Args:
        config: Settings of the run.
        model: Sizes of the biLM.
        initial: Model to fine-tune, or None.

    Raises:
        ValueError: If there is no such text or vocabulary, they do not fit each other, or they do not fit the model.
        ImportError: If a package to read a file is missing.
        OSError: If a file cannot be read.
    """
    check_tokenizer(config, initial)
    vocabulary = _known_vocabulary(config, initial)
    if vocabulary is not None:
        fit_word_table(model, vocabulary, initial)
    elif _is_prepared(config.train):
        if not (Path(str(config.train)) / "corpus.json").is_file():
            raise ValueError(
                f"{config.train} is a folder without a corpus of `elmokit prepare`: name its files, as in "
                f"{Path(str(config.train)) / '*.txt'}"
            )
        raise ValueError(f"{config.train} is already prepared: give the vocabulary file that it was prepared with")
    for paths in (config.train, config.heldout):
        if paths is None:
            continue
        if _is_prepared(paths):
            _open_prepared(config, model, str(paths), vocabulary)
        else:
            files = find_files(_paths(paths))
            check_packages(files)
            for file in files:
                file.open("rb").close()


def _known_vocabulary(config: PretrainConfig, initial: ModelFiles | None) -> Vocabulary | None:
    """The vocabulary that the settings name, or else that of the model; None if the words must be counted."""
    if config.vocabulary is not None:
        return Vocabulary.load(config.vocabulary)
    return None if initial is None else initial.vocabulary


def _open_prepared(config: PretrainConfig, model: BiLMConfig, folder: str, vocabulary: Vocabulary | None) -> Corpus:
    """Open a prepared folder, and check that it fits the settings."""
    corpus = Corpus.open(folder, vocabulary=vocabulary)
    tokenizer = tokenizer_of(config.tokenized).name
    if corpus.tokenizer not in (None, tokenizer):
        value = {"spaces": "true", "treebank": "false"}.get(corpus.tokenizer, f'"{corpus.tokenizer}"')
        raise ValueError(
            f'{folder} was prepared with the tokenizer "{corpus.tokenizer}", tokenized = {config.tokenized} means '
            f'"{tokenizer}": set tokenized = {value}, or prepare the text again'
        )
    if model.num_words is None and corpus.forms.shape[1] != model.max_characters:
        raise ValueError(
            f"{folder} was prepared with {corpus.forms.shape[1]} characters per word, max_characters of the model is "
            f"{model.max_characters}: prepare the text again with that number"
        )
    return corpus


def open_data(config: PretrainConfig, model: BiLMConfig, initial: ModelFiles | None, *, is_resumed: bool) -> Data:
    """Open the vocabulary and the corpora; text is prepared in the run's folder first.

    Args:
        config: Settings of the run.
        model: Sizes of the biLM.
        initial: Model to fine-tune; its vocabulary is used unless the settings name another one.
        is_resumed: Whether the corpora in the run's folder, if there are any, belong to this run.

    Raises:
        ValueError: If there is no text, or a prepared corpus does not fit.
    """
    folder = Path(config.out) / "corpus"
    counted = folder / "vocabulary.txt"
    vocabulary = _known_vocabulary(config, initial)
    if vocabulary is None and is_resumed and counted.exists():
        vocabulary = Vocabulary.load(counted)
    if vocabulary is None:
        size = config.vocabulary_size or model.num_words
        vocabulary = build_vocabulary(
            _paths(config.train), size=size, min_count=config.min_count, tokenized=config.tokenized
        )
        folder.mkdir(parents=True, exist_ok=True)
        vocabulary.save(counted)

    def corpus(paths: str | tuple[str, ...], name: str) -> Corpus:
        if _is_prepared(paths):
            return _open_prepared(config, model, str(paths), vocabulary)
        if is_resumed and (folder / name / "corpus.json").exists():
            return Corpus.open(folder / name, vocabulary=vocabulary)
        return prepare(
            _paths(paths),
            folder / name,
            vocabulary=vocabulary,
            tokenized=config.tokenized,
            max_characters=model.max_characters,
        )

    heldout = None if config.heldout is None else corpus(config.heldout, "heldout")
    return Data(vocabulary, corpus(config.train, "train"), heldout)


def check_tokenizer(config: PretrainConfig, initial: ModelFiles | None) -> None:
    """Check that the text is split as the model to fine-tune splits strings.

    Text for a model with the tokenizer "treebank" may already be split by its rules: `tokenized = True` agrees.

    Args:
        config: Settings of the run.
        initial: Model to fine-tune, or None.

    Raises:
        ValueError: If `tokenized` contradicts the tokenizer of the model.
    """
    tokenizer = tokenizer_of(config.tokenized).name
    if initial is None or initial.tokenizer == tokenizer or (initial.tokenizer, tokenizer) == ("treebank", "spaces"):
        return
    raise ValueError(
        f'tokenized = {config.tokenized} means the tokenizer "{tokenizer}", the model has "{initial.tokenizer}": '
        "leave out tokenized, or correct the tokenizer in the model's config.json"
    )


def _is_prepared(paths: str | tuple[str, ...]) -> bool:
    return isinstance(paths, str) and Path(paths).is_dir()


def _paths(paths: str | tuple[str, ...]) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths)


def make_model(
    config: PretrainConfig, model: BiLMConfig, initial: ModelFiles | None, vocabulary: Vocabulary
) -> LanguageModel:
    """Initialize the model by the seed, then load the weights of `initial`.

    Args:
        config: Settings of the run.
        model: Sizes of the biLM.
        initial: Model to fine-tune, or None. Its output layer is used for the words that it knows.
        vocabulary: Words to predict.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        language_model = LanguageModel(model, len(vocabulary))
    if initial is not None:
        weights = {name: tensor for name, tensor in initial.weights.items() if not name.startswith("mixes.")}
        language_model.bilm.load_state_dict(weights)
        known = initial.vocabulary
        if initial.softmax is not None and known is not None:
            rows = initial.softmax
            if known.digest != vocabulary.digest:
                rows = fit_output_layer(language_model.bilm, rows, known, vocabulary)
            language_model.output.load_state_dict(rows)
    return language_model


@torch.no_grad()
def fit_output_layer(
    bilm: BiLM, softmax: dict[str, Tensor], known: Vocabulary, vocabulary: Vocabulary
) -> dict[str, Tensor]:
    """The output layer for another vocabulary: the module's docstring says how.

    Args:
        bilm: The biLM, which reads characters.
        softmax: `weight` (V, P) and `bias` (V,) of the words in `known`.
        known: The vocabulary of `softmax`.
        vocabulary: The new vocabulary, of W words.

    Returns:
        `weight` (W, P) and `bias` (W,).
    """
    kept = torch.tensor([known.id(word) if word in known else -1 for word in vocabulary.words])  # (W,)
    weight, bias = softmax["weight"][kept.clamp(min=0)], softmax["bias"][kept.clamp(min=0)]
    is_new = kept < 0
    new_words = [word for word in vocabulary.words if word not in known]
    if new_words:
        specials = {known.bos_id, known.eos_id, known.unk_id}
        others = [number for number in range(min(len(known), MAX_KNOWN_WORDS)) if number not in specials]
        weight[is_new] = softmax["weight"][known.unk_id]
        if others:
            candidates = torch.tensor(others)
            vectors = _unit_vectors(bilm, [known.words[number] for number in others])
            neighbours = torch.cat(
                [
                    (part @ vectors.t()).topk(min(NUM_NEIGHBOURS, len(others)), dim=1).indices
                    for part in torch.split(_unit_vectors(bilm, new_words), WORDS_AT_ONCE)
                ]
            )  # (new words, neighbours)
            near = softmax["weight"][candidates[neighbours]].mean(dim=1)
            weight[is_new] = 0.5 * (weight[is_new] + near)
        bias[is_new] = softmax["bias"][known.unk_id] - math.log(len(new_words) + 1)
        logger.info(
            "%d of %d words are new to the model: their rows of the output layer start from <UNK> and similar words",
            len(new_words), len(vocabulary),
        )  # fmt: skip
    return {"weight": weight, "bias": bias}


def _unit_vectors(bilm: BiLM, words: list[str]) -> Tensor:
    """Context-free vectors (N, P) of words, of length one."""
    parts = (words[start : start + WORDS_AT_ONCE] for start in range(0, len(words), WORDS_AT_ONCE))
    vectors = [bilm.embed_words(torch.from_numpy(bilm.word_ids.ids(part))) for part in parts]
    return functional.normalize(torch.cat(vectors), dim=1)


def fit_word_table(model: BiLMConfig, vocabulary: Vocabulary, initial: ModelFiles | None) -> BiLMConfig:
    """Fit the word table of a word-level biLM to its vocabulary, which may be smaller than asked for.

    Args:
        model: Sizes of the biLM.
        vocabulary: Words of the run.
        initial: Model to fine-tune, whose table cannot change.

    Returns:
        The sizes, with one row per word.

    Raises:
        ValueError: If the vocabulary does not fit the table, is not that of the model, or the model has a lexicon.
    """
    if model.num_lexicon_characters is not None:
        raise ValueError("a model with a lexicon of its own (ELMoForManyLangs) cannot be trained")
    if model.num_words is None:
        return model
    if len(vocabulary) > model.num_words or (initial is not None and len(vocabulary) != model.num_words):
        raise ValueError(
            f"num_words is {model.num_words}, the vocabulary has {len(vocabulary)} words: "
            "a word-level biLM needs a row for each word"
        )
    known = None if initial is None else initial.vocabulary
    if known is not None and known.digest != vocabulary.digest:
        raise ValueError("the model reads words by their number in its vocabulary: it cannot be tuned with another one")
    return replace(model, num_words=len(vocabulary), bos_id=vocabulary.bos_id, eos_id=vocabulary.eos_id)
