"""The data of a run and its initial model.

Input: the settings of a run, and the files of a model to fine-tune, if any.  Output: the vocabulary, the prepared
corpora (in the run's folder, unless they were prepared before), and a `LanguageModel` with its initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from elmokit.config import BiLMConfig
from elmokit.corpus import Corpus, build_vocabulary, prepare
from elmokit.corpus.sources import tokenizer_of
from elmokit.pretraining.settings import PretrainConfig
from elmokit.pretraining.step import LanguageModel
from elmokit.storage.folder import ModelFiles
from elmokit.text import Vocabulary


@dataclass(frozen=True, eq=False)
class Data:
    """The text of a run, prepared with its vocabulary."""

    vocabulary: Vocabulary
    train: Corpus
    heldout: Corpus | None


def open_data(config: PretrainConfig, model: BiLMConfig, initial: ModelFiles | None) -> Data:
    """Open the vocabulary and the corpora; text is prepared in the run's folder first.

    Args:
        config: Settings of the run.
        model: Sizes of the biLM.
        initial: Model to fine-tune; its vocabulary is used unless the settings name another one.

    Raises:
        ValueError: If there is no text, or a prepared corpus has another vocabulary.
    """
    folder = Path(config.out) / "corpus"
    counted = folder / "vocabulary.txt"
    if config.vocabulary is not None:
        vocabulary = Vocabulary.load(config.vocabulary)
    elif initial is not None and initial.vocabulary is not None:
        vocabulary = initial.vocabulary
    elif counted.exists():
        vocabulary = Vocabulary.load(counted)
    elif _is_prepared(config.train):
        raise ValueError(f"{config.train} is already prepared: give the vocabulary file that it was prepared with")
    else:
        size = config.vocabulary_size or model.num_words
        vocabulary = build_vocabulary(
            _paths(config.train), size=size, min_count=config.min_count, tokenized=config.tokenized
        )
        folder.mkdir(parents=True, exist_ok=True)
        vocabulary.save(counted)

    def corpus(paths: str | tuple[str, ...], name: str) -> Corpus:
        if _is_prepared(paths):
            return Corpus.open(str(paths), vocabulary=vocabulary)
        if (folder / name / "corpus.json").exists():  # made by this run before
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
        initial: Model to fine-tune, or None. Its output layer is used if its vocabulary is the same.
        vocabulary: Words to predict.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        language_model = LanguageModel(model, len(vocabulary))
    if initial is not None:
        weights = {name: tensor for name, tensor in initial.weights.items() if not name.startswith("mixes.")}
        language_model.bilm.load_state_dict(weights)
        known = initial.vocabulary
        if initial.softmax is not None and known is not None and known.digest == vocabulary.digest:
            language_model.output.load_state_dict(initial.softmax)
    return language_model


def fit_word_table(model: BiLMConfig, vocabulary: Vocabulary, initial: ModelFiles | None) -> BiLMConfig:
    """Fit the word table of a word-level biLM to its vocabulary, which may be smaller than asked for.

    Args:
        model: Sizes of the biLM.
        vocabulary: Words of the run.
        initial: Model to fine-tune, whose table cannot change.

    Returns:
        The sizes, with one row per word.

    Raises:
        ValueError: If the vocabulary does not fit the table, or the model has a lexicon.
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
    return replace(model, num_words=len(vocabulary), bos_id=vocabulary.bos_id, eos_id=vocabulary.eos_id)
