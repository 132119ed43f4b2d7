"""A flair tagger with ELMo and without.

    pip install "elmokit[flair]"
    python examples/flair_tagger.py
    python examples/flair_tagger.py train.conllu dev.conllu test.conllu

trains SequenceTagger twice, on words and characters, and then also on ELMo, and prints how many words of the
test sentences get the right part of speech: those of a toy below, or of files of Universal Dependencies, of which a
few hundred sentences will do.
"""

import argparse
import logging
import tempfile
from collections.abc import Sequence

import flair
from flair.data import Corpus, Dictionary, Sentence
from flair.datasets import FlairDatapointDataset, UniversalDependenciesDataset
from flair.embeddings import CharacterEmbeddings, OneHotEmbeddings, StackedEmbeddings, TokenEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

from elmokit.integrations.flair import ELMoEmbeddings

TOY_TRAIN = """The/DET bank/NOUN lent/VERB him/PRON money/NOUN
They/PRON play/VERB in/ADP the/DET garden/NOUN
The/DET play/NOUN was/AUX long/ADJ
She/PRON drinks/VERB water/NOUN
We/PRON water/VERB the/DET flowers/NOUN
He/PRON saw/VERB a/DET small/ADJ dog/NOUN
The/DET drinks/NOUN were/AUX cold/ADJ
A/DET train/NOUN stopped/VERB in/ADP the/DET station/NOUN"""
TOY_TEST = """The/DET teacher/NOUN read/VERB a/DET book/NOUN
They/PRON book/VERB a/DET room/NOUN
The/DET walk/NOUN was/AUX short/ADJ
You/PRON walk/VERB to/ADP the/DET shop/NOUN
She/PRON bought/VERB a/DET green/ADJ chair/NOUN"""


def toy(lines: str) -> FlairDatapointDataset[Sentence]:
    sentences = []
    for line in lines.splitlines():
        words, tags = zip(*(pair.split("/") for pair in line.split()), strict=True)
        sentences.append(Sentence(list(words)))
        for token, tag in zip(sentences[-1], tags, strict=True):
            token.add_label("upos", tag)
    return FlairDatapointDataset(sentences)


def words_and_characters(corpus: Corpus) -> list[TokenEmbeddings]:
    letters = Dictionary()  # flair's own would be downloaded
    for sentence in corpus.train:
        for letter in sentence.to_plain_string():
            letters.add_item(letter)
    return [OneHotEmbeddings.from_corpus(corpus, embedding_length=100), CharacterEmbeddings(letters)]


def train(corpus: Corpus, embeddings: list[TokenEmbeddings], epochs: int) -> float:
    flair.set_seed(1)
    tagger = SequenceTagger(
        embeddings=StackedEmbeddings(embeddings),
        tag_dictionary=corpus.make_label_dictionary("upos", add_unk=False),
        tag_type="upos",
        hidden_size=128,
        use_crf=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        ModelTrainer(tagger, corpus).fine_tune(
            folder,
            learning_rate=0.005,
            max_epochs=epochs,
            mini_batch_size=16,
            embeddings_storage_mode="cpu",  # ELMo reads each sentence once
            save_final_model=False,
        )
    return tagger.evaluate(corpus.test, gold_label_type="upos", mini_batch_size=32).main_score


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A flair tagger with ELMo and without.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="CoNLL-U to train on, to develop on, to test on")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    logging.getLogger("flair").setLevel(logging.ERROR)
    if len(options.files) not in (0, 3):
        parser.error(f"three files are needed, or none for the toy, not {len(options.files)}")
    parts = [UniversalDependenciesDataset(path) for path in options.files] or map(toy, (TOY_TRAIN, TOY_TEST, TOY_TEST))
    corpus = Corpus(*parts, sample_missing_splits=False)
    for name, more in (("words and characters", []), ("and ELMo", [ELMoEmbeddings()])):
        score = train(corpus, [*words_and_characters(corpus), *more], options.epochs)
        print(f"{score:.1%}  {name}", flush=True)


if __name__ == "__main__":
    main()
