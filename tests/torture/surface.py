"""The public functions of the library: `elmokit`, spans, index, tasks, probes, files of vectors, readers."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kinds import (
    FIXED,
    MARKED_KIND,
    SENTENCES_KIND,
    SPANS,
    TEXT_KIND,
    TOKENS_KIND,
    WORDS_KIND,
    Kind,
    choice,
    floating,
    given,
    ids,
    integers,
    reading,
    records,
    writing,
)  # fmt: skip
from targets import Target, make
from values import FLOATS, anything, tensor, text
from world import SIZES, WORDS, World

TRAINS, LARGE, WRITES = 50, 20, 4  # one case of this many: of training, of the English model, of large inputs


def targets(world: World) -> Iterator[Target]:
    """All of them."""
    for part in (_text, _model, _files_of_models, _parts_of_models, _spans, _index, _tasks, _probes, _files, _readers):
        yield from part(world)


def load(world: World, name: str = "characters") -> Any:
    """A tiny model."""
    from elmokit import ELMo

    return ELMo.from_pretrained(world.models[name])


def unique(name: str) -> str:
    """A new name in the current folder."""
    return f"{name}-{os.getpid()}-{random.randrange(10**9)}"


# ---- text and vectors ------------------------------------------------------------------------------------------------


def _nothing_lost(arguments: dict[str, Any], result: Any) -> str | None:
    same = "".join(result) == "".join(str.split(arguments["text"]))
    return None if same else "the tokens are not the characters of the text"


def _one_result_each(arguments: dict[str, Any], result: Any) -> str | None:
    sentences = arguments["sentences"]
    if type(sentences) in (list, tuple) and len(result) != len(sentences):
        return f"{len(result)} results for {len(sentences)} sentences"
    return None


def _text(world: World) -> Iterator[Target]:
    import elmokit
    from elmokit.text import Tokenizer

    yield make("tokenize", elmokit.tokenize, total=True, check=_nothing_lost)
    for name in ("treebank", "spaces", "characters"):
        for method in ("__call__", "with_offsets", "sentences"):
            yield make(f"Tokenizer({name}).{method}", getattr(Tokenizer(name), method), total=True)
    yield make("batch_to_ids", elmokit.batch_to_ids, total=True)


def _model(world: World) -> Iterator[Target]:
    from elmokit.inference.senses import Occurrence

    elmo = load(world)
    models = {"ELMo": elmo, "ELMo(words)": load(world, "words"), "ELMo(en)": type(elmo).from_pretrained()}
    for name, model in models.items():
        layers, cost = choice("average", "top", "all", "slot", "sense", 0, 1, 2, -1), LARGE if name == "ELMo(en)" else 1
        yield make(f"{name}.embed", model.embed, total=True, check=_one_result_each, layers=layers, cost=cost)
        yield make(f"{name}.encode", model.encode, total=True, sentences=_one_or_many(), cost=cost)
        yield make(f"{name}.to_ids", model.to_ids, total=True, cost=cost)
        yield make(f"{name}.log_probs", model.log_probs, total=True, cost=cost)
        yield make(f"{name}.forward", model.forward, ids=ids(model), cost=cost)
    yield make("ELMo.similarity", elmo.similarity, layers=choice("average", "top", "sense", 0, 2, none=True))
    word = given("bank", "He sat", near=text, words=("word",), is_typed=True)
    yield make("ELMo.senses", elmo.senses, word=word, finite=False)

    def readings(sentences: Any, batch_size: Any, show_progress: Any) -> Any:
        return len(list(elmo.readings(sentences, batch_size=batch_size, show_progress=show_progress)))

    yield make("ELMo.readings", readings, total=True)
    use = Occurrence(["the", "bank"], 1, 2, 0)
    vectors = given(np.ones((2, 12), "f4"), near=(np.ones((2, 11)), np.ones(12), np.ones((1, 12)), [["a"]], None))
    yield make(
        "ELMo.group_senses", elmo.group_senses, word=word, occurrences=records(use, use), vectors=vectors, finite=False
    )
    yield make("ELMo.perplexity", elmo.perplexity, finite=False)
    yield make("ELMo.substitutes", elmo.substitutes, sentence=MARKED_KIND, position=FIXED)
    tokens = given(["the", "bank"], near=TOKENS_KIND.near, words=("token", "sentence", "position"))
    yield make("ELMo.substitutes(tokens)", elmo.substitutes, sentence=tokens)
    yield make("ELMo.embed_words", elmo.embed_words)
    mask = given(torch.ones(2, 4, dtype=torch.bool), near=tensor, words=("mask",), is_typed=True)
    yield make("ELMo.mix", elmo.mix, inside=True, layers=floating(3, 2, 4, 12), mask=mask)
    unused = {"output_layer": FIXED, "vocabulary": FIXED, "lexicon": FIXED, "freeze": FIXED}
    yield make("ELMo", functools.partial(type(elmo), elmo.bilm), **unused)
    yield make("ELMo.state", lambda state: setattr(type(elmo)(elmo.bilm), "state", state))
    folder = world.models["characters"]
    yield make(
        "ELMo.unfreeze",
        lambda from_layer: type(elmo).from_pretrained(folder).unfreeze(from_layer),
        from_layer=choice(0, 1, 2, -1),
        cost=WRITES,
    )


def _one_or_many() -> Kind:
    return Kind(
        lambda rng: rng.choice((SENTENCES_KIND, TEXT_KIND)).good(rng),
        SENTENCES_KIND.near,
        lambda value: True if isinstance(value, str) else SENTENCES_KIND.is_legal(value),
        SENTENCES_KIND.words,
    )


def _files_of_models(world: World) -> Iterator[Target]:
    from elmokit import ELMo

    elmo, official = load(world), world.models["official"]
    vocabulary = reading(official / "vocabulary.txt", none=True)
    yield make(
        "ELMo.from_pretrained",
        _used(ELMo.from_pretrained),
        name=reading(world.models["characters"], official, none=True),
    )
    files = {"options": "options.json", "weights": "weights.hdf5", "softmax": "softmax.hdf5"}
    paths = {name: reading(official / file, none=name == "softmax") for name, file in files.items()}
    yield make("ELMo.from_files", _used(ELMo.from_files), **paths, vocabulary=vocabulary, embeddings=FIXED)
    storage = choice("float32", "float16", "int8", none=True)
    yield make("ELMo.save_pretrained", elmo.save_pretrained, folder=writing("model"), dtype=storage)
    yield make("ELMo.export_hdf5", elmo.export_hdf5, folder=writing("official"))
    embeddings = writing("embeddings.hdf5")
    yield make("ELMo.export_token_embeddings", elmo.export_token_embeddings, vocabulary=vocabulary, path=embeddings)


def _used(call: Callable[..., Any]) -> Callable[..., Any]:
    """Load a model, and use it once."""

    @functools.wraps(call)
    def load_and_embed(*arguments: Any, **settings: Any) -> Any:
        return call(*arguments, **settings).embed(["the bank"])

    return load_and_embed


def _parts_of_models(world: World) -> Iterator[Target]:
    import elmokit
    from elmokit import BiLM, BiLMConfig, ScalarMix, Vocabulary

    elmo, config = load(world), BiLMConfig(**SIZES)
    sizes: dict[str, Any] = dict.fromkeys(("char_dim", "cell_dim", "projection_dim", "num_layers"), integers(1, 5))
    sizes["num_words"] = integers(1, 5, none=True)
    sizes["max_characters"] = integers(1, 50, bound=200)  # a word-level model has no rules about characters
    sizes |= dict.fromkeys(("num_highways", "bos_id", "eos_id"), integers(0, 2))
    sizes["filters"] = given(SIZES["filters"], near=([], ((0, 1),), ((1,),), "ab", ((99, 1),), ((1.5, 2),), [[1, 2]]))
    clips = {"cell_clip": given(3.0, None), "proj_clip": given(3.0, None), "activation": choice("relu", "tanh")}
    yield make("BiLMConfig", BiLMConfig, **sizes, **clips)
    yield make("BiLM", lambda config: BiLM(config), config=given(config, near=(SIZES, {}), words=("config",)))
    state = given(None, near=lambda rng: (tensor(rng),) * 2, words=("state",), is_typed=True)
    yield make("BiLM.forward", elmo.bilm.forward, ids=ids(elmo), state=state)
    words = given(elmo.to_ids([["a", "b"]])[0], near=tensor, words=("id",), is_typed=True)
    yield make("BiLM.embed_words", elmo.bilm.embed_words, inside=True, ids=words)
    yield make("ScalarMix", ScalarMix, num_layers=integers(1, 3, bound=99), eps=FIXED)
    mask = given(torch.ones(2, 4, dtype=torch.bool), near=tensor, words=("mask",), is_typed=True)
    yield make("ScalarMix.forward", ScalarMix(3).forward, inside=True, layers=floating(3, 2, 4, 12), mask=mask)

    odd = lambda rng: rng.choice((WORDS * 2, WORDS[1:], [*WORDS, anything(rng)], [*WORDS, text(rng)]))  # noqa: E731
    known, path = Vocabulary(WORDS), world.models["official"] / "vocabulary.txt"
    yield make("Vocabulary", Vocabulary, words=given(WORDS, near=odd, words=("word", "vocabulary", "twice")))
    yield make("Vocabulary.load", Vocabulary.load, path=reading(path))
    yield make("Vocabulary.save", known.save, path=writing("words.txt"))
    yield make("Vocabulary.id", known.id, word=TEXT_KIND)
    yield make("Vocabulary.ids", known.ids)

    heldout = reading(world.path("heldout.txt"))
    settings = {
        "steps": integers(1, 1, bound=1, none=True), "unroll": integers(1, 3, bound=9),
        "batch_size": integers(1, 3, bound=9),
        "learning_rate": given(0.01, near=FLOATS), "loss": choice("full"), "device": choice("cpu"),
        "seed": integers(0, 9), "betas": given((0.9, 0.99)), "precision": choice("float32"),
        "optimizer": choice("adamw", "adagrad"), "tensorboard": given(False, is_typed=True, near=(False,)),
    }  # fmt: skip
    # not None: the default is the published size, a legal request that takes long
    model = given(config, near=(SIZES, {}, "tiny"), words=("model", "config"), is_typed=True, is_needed=True)
    pretrain = functools.partial(elmokit.pretrain, epochs=0.01)
    yield make(
        "pretrain", pretrain, train=heldout, heldout=heldout, out=writing("run"), model=model, cost=TRAINS,
        finite=False, **settings,
    )  # fmt: skip


# ---- spans, index ----------------------------------------------------------------------------------------------------


def _spans(world: World) -> Iterator[Target]:
    from elmokit import embed_spans, spans

    sentences = Kind(lambda rng: [["the", "bank"]], SENTENCES_KIND.near, SENTENCES_KIND.is_legal, SENTENCES_KIND.words)
    choices = {"how": choice("mean", "ends"), "unit": choice("tokens", "characters"), "attention": FIXED}
    yield make("embed_spans", functools.partial(embed_spans, load(world)), sentences=sentences, **choices)
    flat = given([(0, 3)], near=SPANS.near, words=("span",))
    yield make("spans.to_token_spans", spans.to_token_spans, spans=flat, tokenizer=FIXED)
    lengths = given([2], near=([], [-1], ["2"], 2, [2.5], [2, 2]), words=("span", "length"))
    yield make("spans.pad_spans", spans.pad_spans, lengths=lengths)
    odd = lambda rng: rng.choice((torch.tensor([[[1, 0]]]), torch.tensor([[[0, 99]]]), tensor(rng)))  # noqa: E731
    padded = given(torch.tensor([[[0, 1]]]), near=odd, words=("span",), is_typed=True)
    for name, call in {
        "mean_of_spans": spans.mean_of_spans,
        "ends_of_spans": spans.ends_of_spans,
        "SpanAttention.forward": spans.SpanAttention(12).forward,
    }.items():
        yield make(f"spans.{name}", call, inside=True, x=floating(1, 4, 12), spans=padded)
    yield make("spans.SpanAttention", spans.SpanAttention, dim=integers(1, 9, bound=99))


def _index(world: World) -> Iterator[Target]:
    from elmokit.index import WordIndex

    elmo, store = load(world), WordIndex.open(world.path("store"))
    wrong = np.ones((2, 11)), np.ones(12), np.full((1, 12), np.nan), np.ones((0, 12)), [["a"] * 12], np.zeros((1, 12))
    yield make("WordIndex.search", store.search, vectors=given(np.ones((2, 12), "f4"), near=wrong, words=("vector",)))
    yield make("WordIndex.neighbours", functools.partial(store.neighbours, elmo), sentence=MARKED_KIND)
    word = given("bank", "xyzzy", near=text, words=("word",), is_typed=True)
    yield make("WordIndex.occurrences", store.occurrences, word=word, finite=False)
    yield make("WordIndex.senses", functools.partial(store.senses, elmo), word=word, finite=False)
    yield make("WordIndex.open", lambda folder: len(WordIndex.open(folder)), folder=reading(world.path("store")))

    def create(folder: Any, layer: Any, skip_words: Any) -> Any:
        return len(WordIndex.create(folder, elmo, layer=layer, skip_words=skip_words))

    def add(sentences: Any, source: Any) -> Any:
        return WordIndex.create(unique("index"), elmo).add(elmo, sentences, source=source)

    yield make("WordIndex.create", create, folder=writing("store"), skip_words=WORDS_KIND)
    yield make("WordIndex.add", add, cost=WRITES, source=given(None, "a text", near=text))


# ---- tasks, probes ---------------------------------------------------------------------------------------------------


def _tasks(world: World) -> Iterator[Target]:
    from elmokit.tasks import TaskConfig, load_task, train

    trained = load_task(world.path("task"), device="cpu")
    train_file, dev_file, model = world.path("train.conll"), world.path("dev.conll"), world.models["characters"]
    yield make("TrainedTask.predict", trained.predict, texts=SENTENCES_KIND)
    yield make("TrainedTask.evaluate", trained.evaluate, files=reading(dev_file))
    yield make("TrainedTask.save", trained.save, folder=writing("task"))
    moved = {"elmo": FIXED, "vectors": FIXED, "device": choice("cpu", none=True)}
    yield make(
        "load_task",
        lambda folder, device: load_task(folder, device=device).words,
        folder=reading(world.path("task")),
        **moved,
    )
    sizes = dict.fromkeys(("epochs", "hidden_dim", "num_layers", "batch_size", "patience"), integers(1, 3))
    names = {
        "task": given("ner", near=text, words=("task",)),
        "train": given("a", near=text),
        "out": given("b", near=text),
    }
    yield make("TaskConfig", TaskConfig, **names, **sizes, learning_rate=given(0.01, near=FLOATS))
    small = {"task": "ner", "hidden_dim": 2, "char_dim": 2, "word_dim": 2, "epochs": 1, "device": "cpu"}
    small |= {"train": str(train_file), "dev": str(dev_file), "elmo": str(model), "cache": str(world.path("cache"))}

    def train_with(**changed: Any) -> Any:
        return train(TaskConfig(**{**small, "out": unique("task"), **changed}))

    files = {"train": reading(train_file), "dev": reading(dev_file), "elmo": reading(model)}
    yield make("train", train_with, seed=integers(0, 3), finite=False, cost=TRAINS, **files)


def _probes(world: World) -> Iterator[Target]:
    from elmokit import probes
    from elmokit.datasets import TaggedSentence, WordInContext, WordPair
    from elmokit.probes import SENSE_TRIPLES

    here = functools.partial
    elmo, heldout = load(world), world.path("heldout.txt")
    yield make("probes.neighbours_of_words", here(probes.neighbours_of_words, elmo))
    sentences = lambda rng: {text(rng): text(rng)}  # noqa: E731
    blanks = given({"the [____] .": "bank"}, near=sentences, words=("blank", "sentence", "bracket"))
    yield make("probes.fill_blanks", here(probes.fill_blanks, elmo), blanks=blanks)
    odd = lambda rng: rng.choice(([], [text(rng)], ["a"], text(rng)))  # noqa: E731
    queries = given(["the [bank] ."], near=odd, words=("query", "queries", "sentence", "brackets"))
    corpus = given([["the", "bank"], ["a", "river"]], near=SENTENCES_KIND.near, words=("sentence", "corpus", "token"))
    layer = choice("sense", 0, 1, 2, -1)
    yield make(
        "probes.nearest_in_context", here(probes.nearest_in_context, elmo), queries=queries, corpus=corpus, layer=layer
    )
    use = WordInContext("bank", "N", ["the", "bank"], 1)
    pair = WordPair(use, use, 1.0)
    yield make("probes.same_meaning", here(probes.same_meaning, elmo), train=records(pair), test=records(pair))
    yield make("probes.likeness", here(probes.likeness, elmo), pairs=records(pair, pair), finite=False)
    yield make(
        "probes.sense_triples", here(probes.sense_triples, elmo), triples=records(*SENSE_TRIPLES[:2]), cost=WRITES
    )
    tagged, none = [TaggedSentence(["the", "bank"], ["D", "N"])], []
    sets = [{"pos": probes.TaggedSplits(*splits)} for splits in ((tagged,) * 3, (none,) * 3, (tagged, none, tagged))]
    tag_sets = given(sets[0], near=(*sets[1:], {}), words=("tag", "train"), is_typed=True)
    yield make("probes.probe_tags", here(probes.probe_tags, elmo), tag_sets=tag_sets, cost=TRAINS)
    yield make(
        "probes.text_perplexity", here(probes.text_perplexity, elmo), path=reading(heldout), finite=False, cost=WRITES
    )
    singly = here(probes.sentence_perplexity, elmo)
    yield make("probes.sentence_perplexity", singly, path=reading(heldout), finite=False, cost=WRITES)
    folders = given(world.folder, near=(Path("no"), Path("/dev/null")), is_typed=True, words=("folder", "data", "no"))
    yield make("probes.find_probes", probes.find_probes, data=folders, heldout=FIXED)
    yield make("probes.read_report", probes.read_report, path=reading(heldout))
    tasks = given([world.path("task")], near=([], ["no"], [""]), is_typed=True, words=("folder", "no"))
    yield make("probes.read_mixes", probes.read_mixes, folders=tasks)


# ---- files of vectors, readers of data -------------------------------------------------------------------------------


def _files(world: World) -> Iterator[Target]:
    from elmokit import vector_files

    elmo = load(world)

    def write(lines: Any, batch_size: Any, layers: Any) -> Any:
        file = vector_files.VectorFile(Path(unique("vectors") + ".npz"), "npz", layers=layers)
        return vector_files.write_vectors(elmo, lines, file, batch_size=batch_size)

    lines = given(["the bank", "", "a river"], near=SENTENCES_KIND.near, words=("line", "sentence", "text"))
    yield make("write_vectors", write, cost=WRITES, lines=lines)
    odd = lambda rng: [rng.choice((b"\xff", text(rng).encode("utf-8", "surrogatepass")))]  # noqa: E731
    file = given([b"the bank\n"], near=odd, words=("line",), is_typed=True)
    yield make("vector_files.read_lines", lambda file: list(vector_files.read_lines(file, "a text")), file=file)


def _readers(world: World) -> Iterator[Target]:
    from elmokit import datasets

    for name in datasets.__all__:
        if name.startswith("read_"):
            yield make(f"datasets.{name}", reader(getattr(datasets, name)), content=CONTENT, finite=False)


CELLS = (
    "a",
    "B-LOC",
    "1",
    "-",
    "(0",
    "0)",
    "{",
    "}",
    '"',
    "[",
    "<w>",
    "\\",
    "#",
    "1.5",
    "nan",
    "(2 (1 a) b)",
    "0",
    "T",
)
WHOLE = (
    b"",
    b"{}",
    b"[]",
    b"[" * 2000,
    b'{"data": [{}]}',
    b"\xef\xbb\xbf",
    b"\0" * 99,
    b"label\ttext\n1\ta\n",
    b">x\nSEQ\n",
)


def odd_content(rng: random.Random) -> bytes:
    """The content of a file of labelled data, more or less."""
    made = "".join(rng.choice(CELLS) + rng.choice(("\t", " ", "\n", "\n\n", "")) for _ in range(rng.randrange(60)))
    return rng.choice(
        (made.encode(), made.encode("utf-16"), b"\xff" + made.encode(), rng.randbytes(40), rng.choice(WHOLE))
    )


CONTENT = given(b"a\tB-LOC\nb\tO\n\n", near=odd_content, words=("data-",), is_typed=True)


def reader(read: Callable[..., Any]) -> Callable[..., Any]:
    """A reader of files as a function of their content."""

    def read_content(content: bytes) -> Any:
        path = Path(f"data-{os.getpid()}.txt")
        path.write_bytes(content)
        return read(path)

    return read_content
