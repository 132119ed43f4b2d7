"""The names of other ELMo packages (`elmokit.compat`), and scikit-learn where it is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from kinds import (
    BY_NAME,
    FIXED,
    FLAG,
    SENTENCES_KIND,
    TEXT_KIND,
    TOKENS_KIND,
    Kind,
    choice,
    given,
    ids,
    integers,
    reading,
    writing,
)  # fmt: skip
from surface import CONTENT, load, reader
from targets import Target, make
from values import anything, tensor
from world import WORDS, World

LOADS = 4  # one case of this many, of those that load a model each time


def targets(world: World) -> Iterator[Target]:
    """All of them."""
    for part in (_allennlp, _simple_elmo, _manylangs, _seqvec, _tfhub, _sklearn):
        yield from part(world)


BATCH = Kind(lambda rng: [["the", "bank"], []], SENTENCES_KIND.near, SENTENCES_KIND.is_legal, SENTENCES_KIND.words)


def _allennlp(world: World) -> Iterator[Target]:
    from elmokit import compat

    options, weights = (world.models["official"] / name for name in ("options.json", "weights.hdf5"))
    elmo, embedder = compat.Elmo(options, weights, 1).eval(), compat.ElmoEmbedder(options, weights)
    files = {"options_file": reading(options), "weight_file": reading(weights)}
    mix = given(None, near=([1.0], [1, 2, 3], ["a"] * 3, [float("nan")] * 3, 3), words=("scalar_mix",))
    number = integers(0, 2, bound=50)
    skipped = {"vocab_to_cache": FIXED, "namespace_to_cache": FIXED}
    yield make(
        "compat.Elmo",
        compat.Elmo,
        cost=LOADS,
        **files,
        num_output_representations=number,
        scalar_mix_parameters=mix,
        **skipped,
    )
    yield make("compat.Elmo.forward", elmo.forward, inputs=ids(elmo.elmo), word_inputs=FIXED)
    settings = {"projection_dim": integers(0, 4, none=True, bound=50), "scalar_mix_parameters": mix, **skipped}
    yield make("compat.ElmoTokenEmbedder", compat.ElmoTokenEmbedder, cost=LOADS, **files, **settings)
    tokens = compat.ElmoTokenEmbedder(options, weights).eval()
    yield make("compat.ElmoTokenEmbedder.forward", tokens.forward, elmo_tokens=ids(elmo.elmo), word_inputs=FIXED)
    for name in ("_ElmoBiLm", "_ElmoCharacterEncoder"):
        part = getattr(compat, name)(options, weights).eval()
        yield make(f"compat.{name}", getattr(compat, name), cost=LOADS, **files, **skipped)
        yield make(f"compat.{name}.forward", part.forward, inputs=ids(elmo.elmo), word_inputs=FIXED)
    sizes = {"mixture_size": integers(1, 3, bound=9), "initial_scalar_parameters": mix, "do_layer_norm": FLAG}
    yield make("compat.ScalarMix", compat.ScalarMix, **sizes, trainable=FLAG)
    vectors = given([torch.ones(1, 2, 3)] * 2, near=lambda rng: [tensor(rng)] * 2, words=("tensor",), is_typed=True)
    yield make("compat.ScalarMix.forward", compat.ScalarMix(2).forward, inside=True, tensors=vectors, mask=FIXED)

    cuda = integers(-1, -1, most=-1)
    yield make("compat.ElmoEmbedder", compat.ElmoEmbedder, cost=LOADS, **files, cuda_device=cuda)
    yield make("compat.ElmoEmbedder.embed_batch", embedder.embed_batch, batch=BATCH)
    yield make("compat.ElmoEmbedder.batch_to_embeddings", embedder.batch_to_embeddings, batch=BATCH)
    yield make("compat.ElmoEmbedder.embed_sentence", embedder.embed_sentence, sentence=TOKENS_KIND)
    sizes = {"batch_size": integers(1, 4)}
    yield make("compat.ElmoEmbedder.embed_sentences", _listed(embedder.embed_sentences), sentences=BATCH, **sizes)
    lines = given(["the bank", "a"], near=SENTENCES_KIND.near, words=("line", "sentence"))
    written = {"output_file_path": writing("out.hdf5"), "output_format": choice("all", "top", "average")}
    yield make("compat.ElmoEmbedder.embed_file", embedder.embed_file, input_file=lines, **written, **sizes)


def _listed(call: Callable[..., Iterable[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(call)
    def listed(*arguments: Any, **settings: Any) -> list[Any]:
        return list(call(*arguments, **settings))

    return listed


def _simple_elmo(world: World) -> Iterator[Target]:
    from elmokit import compat

    folder = reading(world.models["characters"])

    def load_and_use(directory: Any, max_batch_size: Any) -> Any:
        model = compat.ElmoModel()
        model.load(directory, max_batch_size)
        return model.get_elmo_vectors([["the", "bank"]])

    yield make(
        "compat.ElmoModel.load", load_and_use, cost=LOADS, directory=folder, max_batch_size=integers(1, 3, none=True)
    )
    model, layers = compat.ElmoModel(), choice("all", "top", "average")
    model.load(world.models["characters"])
    yield make("compat.ElmoModel.get_elmo_vectors", model.get_elmo_vectors, texts=SENTENCES_KIND, layers=layers)
    yield make(
        "compat.ElmoModel.get_elmo_vector_average", model.get_elmo_vector_average, texts=SENTENCES_KIND, layers=layers
    )
    top = integers(1, 3, most=len(WORDS))
    yield make(
        "compat.ElmoModel.get_elmo_substitutes", model.get_elmo_substitutes, data=SENTENCES_KIND, topn=top, finite=False
    )


def _manylangs(world: World) -> Iterator[Target]:
    from elmokit import compat

    def load_and_use(model_dir: Any, batch_size: Any) -> Any:
        return compat.Embedder(model_dir, batch_size).sents2elmo([["a"]])

    folder = world.models["lexicon"]
    yield make(
        "compat.Embedder", load_and_use, cost=LOADS, model_dir=reading(folder), batch_size=integers(1, 3, none=True)
    )
    layer = choice(-2, -1, 0, 1, 2)
    yield make(
        "compat.Embedder.sents2elmo", compat.Embedder(folder).sents2elmo, sents=SENTENCES_KIND, output_layer=layer
    )


def _seqvec(world: World) -> Iterator[Target]:
    from elmokit import compat

    proteins = compat.SeqVecEmbedder(load(world))
    sequence = Kind(lambda rng: "SEQVEC", TEXT_KIND.near, TEXT_KIND.is_legal, ("sequence", "residue"))
    yield make("compat.SeqVecEmbedder.embed", proteins.embed, sequence=sequence)
    sequences = given(["SEQ", "vec", ""], near=SENTENCES_KIND.near, words=("sequence", "residue", "sentence"))
    yield make("compat.SeqVecEmbedder.embed_many", proteins.embed_many, sequences=sequences)
    wrong = np.ones((3, 0, 4), "f4"), np.ones((1, 2, 4), "f4"), np.ones((3, 2, 0), "f4")
    layers = given(np.ones((3, 2, 12), "f4"), near=wrong, words=("embedding",), is_typed=True)
    yield make("compat.SeqVecEmbedder.reduce_per_residue", proteins.reduce_per_residue, embedding=layers)
    yield make("compat.SeqVecEmbedder.reduce_per_protein", proteins.reduce_per_protein, embedding=layers)
    yield make("compat.read_fasta", reader(compat.read_fasta), content=CONTENT)


def _tfhub(world: World) -> Iterator[Target]:
    from elmokit import compat

    hub = compat.TFHubELMo(load(world)).eval()
    words = ("input", "sentence", "token", "sequence_len", "signature")
    wrong = {"tokens": [["a"]], "sequence_len": [2]}, {"tokens": [["a"]]}, [["a"]], {}
    strings = given(["the bank"], near=lambda rng: rng.choice((SENTENCES_KIND.near(rng), *wrong)), words=words)
    yield make("compat.TFHubELMo.forward", hub.forward, inputs=strings, signature=choice("default", "tokens"))

    def odd(rng: Any) -> Any:
        lengths = rng.choice(([1], [-1], [2], [1.5], ["1"], 1, None, np.array([1])))
        return {"tokens": rng.choice(([["a"]], [[1]], "a", anything(rng))), "sequence_len": lengths}

    tokens = given({"tokens": [["a", ""]], "sequence_len": [1]}, near=odd, words=words)
    yield make(
        "compat.TFHubELMo.forward(tokens)",
        functools.partial(hub.forward, signature="tokens"),
        inputs=tokens,
        signature=FIXED,
    )
    yield make(
        "compat.TFHubELMo",
        lambda model: compat.TFHubELMo(model).eval()(["a"]),
        cost=LOADS,
        model=reading(world.models["characters"], none=True),
    )


def _sklearn(world: World) -> Iterator[Target]:
    try:
        from elmokit.integrations.sklearn import ELMoVectorizer
    except ImportError:
        return
    elmo = load(world)
    column = Kind(
        lambda rng: ["the bank", "a"], SENTENCES_KIND.near, SENTENCES_KIND.is_legal, ("x", "sentence", "token")
    )

    def transform(X: Any, **settings: Any) -> Any:
        return ELMoVectorizer(elmo, **settings).fit(["a"]).transform(X)

    settings = {name: BY_NAME[name] for name in ("layers", "normalize", "batch_size")}
    yield make("ELMoVectorizer.transform", transform, X=column, pooling=choice("mean", "max"), **settings)
