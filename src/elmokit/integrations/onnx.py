"""A model as one ONNX file, for programs without Python or torch.

Input: an `ELMo` of any kind. Output: a file whose graph reads what `batch_to_ids` (or `ELMo.to_ids`) makes, for any
number of sentences and tokens, and gives every layer's vectors (L+1, B, T, 2P) and the mask (B, T), as `BiLM.forward`
does, or one vector per token, as `ELMo.embed` does: boundary tokens are added and removed inside, padding is zero, no
state is kept from run to run.

The graph is built node by node in the order of the data, with the names and shapes of `elmokit.network` (S = T+2 is the
number of steps with boundary tokens). Nothing is traced, so the file does not depend on the version of torch.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from elmokit import ELMo, ScalarMix, __version__
from elmokit.arguments import check_path
from elmokit.config import BiLMConfig
from elmokit.extras import require
from elmokit.files import replacing
from elmokit.inference.views import HALF_DISTANCE, REACH, SURROUNDINGS, check_layers, needs_weights
from elmokit.settings import to_mapping
from elmokit.storage.folder import Storage, stored

require("onnx", extra="onnx")

from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from elmokit.integrations.onnx_graph import Array, Directions, Graph, Shape, integer, ints, number, values_of
from elmokit.integrations.onnx_transformer import normalized, transformer_layers

Layers = Literal["all", "average", "top", "slot", "sense", "mix"] | int

OPSET, IR_VERSION = 18, 8  # those of onnx 1.13: old enough for ONNX Runtime 1.15, which was tried
LARGEST_FILE = 2**31 - 2**20  # the limit of protobuf is 2 GiB; nodes and names take far less than a MiB


@dataclass(frozen=True)
class OnnxFile:
    """What was written."""

    path: Path
    num_bytes: int
    inputs: dict[str, Shape]
    """Name -> shape. An axis with a name has any length."""
    outputs: dict[str, Shape]


def export_onnx(
    model: ELMo, path: str | os.PathLike[str], *, layers: Layers = "all", dtype: Storage = "float32"
) -> OnnxFile:
    """Write the model as an ONNX file.

    Args:
        model: The model.
        path: The file to write.
        layers: "all", or one vector per token: "average" is the even mix, "top" the last layer, a number one layer,
            "mix" the mix that the model has learned, "slot" and "sense" as in `ELMo.embed`. The graph of "sense" has a
            second input, `weights`, the weights of the words; its metadata has a table of them.
        dtype: How the weights are stored, as in `save_pretrained`. The graph always computes in float32.

    Returns:
        The file, its size, and the names and shapes of its inputs and outputs.

    Raises:
        ValueError: If the model has no such layers, carries its state, keeps boundaries, was quantized, or is larger
            than 2 GiB.
    """
    path, config = Path(check_path("path", path)), model.config
    chosen = layers if layers == "mix" else check_layers(layers, model.num_layers)
    fractions = _fractions(model, chosen)
    check_exportable(model)
    weights = stored({name: t.detach().cpu() for name, t in model.bilm.state_dict().items()}, dtype)
    metadata = {
        "elmokit_version": __version__,
        "config": json.dumps(to_mapping(config)),
        "layers": str(layers),
        "dtype": dtype,
    }
    # with these a program that has only the file can make ids and weights
    if model.reads_words and model.vocabulary is not None:
        metadata["vocabulary"] = "\n".join(model.vocabulary.words)
    if model.lexicon is not None:
        metadata["lexicon"] = json.dumps({"characters": model.lexicon.characters, "words": model.lexicon.words})
    if needs_weights(chosen):
        metadata["word_weights"] = _word_weights(model)
    num_bytes = sum(t.nbytes for t in weights.values()) + sum(len(text.encode()) for text in metadata.values())
    if num_bytes > LARGEST_FILE:
        advice = "" if dtype == "int8" else ': store it as "float16" or "int8"'
        raise ValueError(f"{path}: an ONNX file holds 2 GiB, the model takes {num_bytes:,} bytes as {dtype}{advice}")

    axes: Shape = ("batch", "tokens")
    inputs = {"ids": axes if config.id_columns is None else (*axes, config.id_columns)}
    if needs_weights(chosen):
        inputs["weights"] = axes
    outputs = {"vectors": (*axes, model.dim), "mask": axes}
    if chosen == "all":
        outputs = {"layers": (model.num_layers, *outputs["vectors"]), "mask": axes}
    graph = Graph(weights)
    computed, mask = bilm_layers(graph, config, model.bilm.boundary_ids.cpu().numpy())
    vectors = chosen_vectors(graph, chosen, computed, mask, fractions, model.dim)
    # without boundaries a sentence is two tokens shorter: where its </S> still is, there is padding
    graph("Where", graph("Unsqueeze", mask, ints(2)), vectors, number(0), output=next(iter(outputs)))
    graph("Identity", mask, output="mask")
    content = model_proto(graph, inputs, outputs, metadata).SerializeToString()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return OnnxFile(path, len(content), inputs, outputs)


def check_exportable(model: ELMo) -> None:
    """Refuse a model that cannot be written as ONNX."""
    if model.bilm.is_int8:
        raise ValueError('this model was loaded with quantize="int8": load it without, and export with dtype="int8"')
    if model.state == "carry":
        raise ValueError('an ONNX graph keeps no state between runs: load the model without state="carry"')
    if model.keep_boundaries:
        raise ValueError("an exported model removes boundary tokens: load it without keep_boundaries")


def _fractions(model: ELMo, layers: Layers) -> dict[int, float]:
    """Layer -> its fraction of a token's vector, for a vector that is a sum of layers."""
    if layers == "mix":
        mix = model.mixes[0] if len(model.mixes) == 1 else None
        if not isinstance(mix, ScalarMix) or mix.layer_norm:
            kind = f"{len(model.mixes)} mixes{' with layer norm' if model.layer_norm else ''}"
            raise ValueError(f'layers="mix" is for a model with one mix and no layer norm, this one has {kind}')
        return dict(enumerate((mix.gamma.double() * mix.weights.double().softmax(dim=0)).tolist()))
    if layers == "average":
        return dict.fromkeys(range(model.num_layers), 1 / model.num_layers)
    if layers == "top":
        return {model.num_layers - 1: 1.0}
    return {layers: 1.0} if isinstance(layers, int) else {}


def _word_weights(model: ELMo) -> str:
    """The weights of the words as JSON, for a program that has only the file."""
    known = {word: float(f"{weight:.7g}") for word, weight in model.word_weights.known.items()}
    return json.dumps({"words": known, "unknown": model.word_weights.unknown}, ensure_ascii=False)


# ---- the graph, in the order that data flows -------------------------------------------------------------------------


def bilm_layers(graph: Graph, config: BiLMConfig, boundary_ids: Array) -> tuple[list[Directions], str]:
    """`ids` -> all layers with their boundary tokens, and the mask (B, T)."""
    tokens, active, mask = _tokens(graph, config, boundary_ids)
    directions = [tokens, tokens]
    layers = [directions]
    if config.architecture == "transformer":
        return [*layers, *transformer_layers(graph, config, tokens, active)], mask
    for layer in range(config.num_layers):
        inputs = directions
        directions = [_lstm(graph, config, layer, d, inputs[d], active) for d in (0, 1)]  # (S, B, P) each
        if layer > 0 and config.skip_connections:
            directions = [graph("Add", *pair) for pair in zip(directions, inputs, strict=True)]
        layers.append(directions)
    return layers, mask


def chosen_vectors(
    graph: Graph, chosen: Layers, layers: Sequence[Directions], mask: str, parts: Mapping[int, float], dim: int
) -> str:
    """(B, T, 2P), or (L+1, B, T, 2P) of all layers."""
    if chosen == "all":
        joined = [graph("Concat", *layer, axis=2) for layer in layers]  # (S, B, 2P) each
        stacked = graph("Concat", *(graph("Unsqueeze", layer, ints(0)) for layer in joined), axis=0)
        return graph("Transpose", graph("Slice", stacked, ints(1), ints(-1), ints(1)), perm=[0, 2, 1, 3])
    if chosen == "slot":
        time_first = _slot(graph, layers[-1])
    elif chosen == "sense":
        said = graph("Sub", _slot(graph, layers[-1]), _slot_without_context(graph, layers[-1], mask))
        surroundings = graph("Mul", _surroundings(graph, layers, mask), number(SURROUNDINGS * math.sqrt(0.5)))
        time_first = _level(graph, graph("Add", _unit(graph, said), surroundings), dim)
    else:
        time_first = _weighted_sum(graph, layers, parts)
    return graph("Transpose", time_first, perm=[1, 0, 2])


def _weighted_sum(graph: Graph, layers: Sequence[Directions], fractions: Mapping[int, float]) -> str:
    """(T, B, 2P)."""
    joined = {layer: graph("Concat", *layers[layer], axis=2) for layer in fractions}  # (S, B, 2P) each
    total = graph("Sum", *(graph("Mul", joined[layer], number(part)) for layer, part in fractions.items()))
    return graph("Slice", total, ints(1), ints(-1), ints(0))


def _slot(graph: Graph, top: Directions) -> str:
    """(T, B, 2P): forward at the token before, backward at the token after."""
    before = graph("Slice", top[0], ints(0), ints(-2), ints(0))  # (T, B, P)
    after = graph("Slice", top[1], ints(2), ints(np.iinfo(np.int64).max), ints(0))
    return graph("Concat", before, after, axis=2)


def _slot_without_context(graph: Graph, top: Directions, mask: str) -> str:
    """(1, B, 2P): forward at <S>, backward at </S>."""
    first = graph("Slice", top[0], ints(0), ints(1), ints(0))  # (1, B, P)
    lengths = graph("ReduceSum", graph("Cast", mask, to=TensorProto.INT64), ints(1), keepdims=0)  # (B,)
    num_steps = graph("Gather", graph("Shape", top[1]), integer(0))
    steps = graph("Unsqueeze", graph("Range", integer(0), num_steps, integer(1)), ints(1))  # (S, 1)
    is_end = graph("Unsqueeze", graph("Equal", steps, graph("Add", lengths, integer(1))), ints(2))  # (S, B, 1)
    last = graph("ReduceSum", graph("Where", is_end, top[1], number(0)), ints(0), keepdims=1)  # (1, B, P)
    return graph("Concat", first, last, axis=2)


def _surroundings(graph: Graph, layers: Sequence[Directions], mask: str) -> str:
    """(T, B, 2P): sums of the other words, by `weights` and by nearness; see `elmokit.inference.views`."""
    weights = graph("Unsqueeze", graph("Transpose", graph("Where", mask, "weights", number(0))), ints(2))  # (T, B, 1)
    inside = (graph("Slice", part, ints(1), ints(-1), ints(0)) for part in (layers[0][0], *layers[-1]))
    words, forward, backward = (graph("Mul", part, weights) for part in inside)  # (T, B, P) each
    shape = graph("Shape", words)
    num_tokens, rest = graph.several("Split", shape, ints(1, 2), outputs=["num_tokens", "rest"], axis=0)
    stop = graph("Cast", graph("Squeeze", num_tokens), to=TensorProto.FLOAT)
    place = graph("Range", number(0), stop, number(1))  # (T,)
    ahead = graph("Sub", graph("Unsqueeze", place, ints(1)), place)  # (T, T): how far a word is before another one
    # one product of matrices (T, T) and (T, B P): a product of batches refuses a batch of no sentences
    wide = graph("Concat", num_tokens, graph("ReduceProd", rest, ints(0), keepdims=1), axis=0)

    def total(distance: str, vectors: str) -> str:
        counts = graph("And", graph("Greater", distance, number(0)), graph("LessOrEqual", distance, number(REACH)))
        nearness = graph("Reciprocal", graph("Add", graph("Mul", distance, number(1 / HALF_DISTANCE)), number(1)))
        nearness = graph("Where", counts, nearness, number(0))
        product = graph("MatMul", nearness, graph("Reshape", vectors, wide, allowzero=1))
        return graph("Reshape", product, shape, allowzero=1)

    contexts = graph("Add", total(ahead, forward), total(graph("Neg", ahead), backward))
    halves = (total(graph("Abs", ahead), words), contexts)
    return graph("Concat", *(_unit(graph, half) for half in halves), axis=2)


def _unit(graph: Graph, vectors: str) -> str:
    """Vectors of length one; zeros stay zeros."""
    return graph("Div", vectors, graph("Max", graph("ReduceL2", vectors, ints(-1), keepdims=1), number(1e-12)))


def _level(graph: Graph, vectors: str, dim: int) -> str:
    """Large values made smaller: tanh(sqrt(dim) x) / sqrt(dim)."""
    scale = math.sqrt(dim)
    return graph("Mul", graph("Tanh", graph("Mul", vectors, number(scale))), number(1 / scale))


def _tokens(graph: Graph, config: BiLMConfig, boundary_ids: Array) -> tuple[str, str, str]:
    """`ids` -> token vectors with boundary tokens (S, B, P), where they are (S, B, 1), and the mask (B, T)."""
    if config.id_columns is not None:
        mask = graph("Greater", graph("ReduceMax", "ids", ints(2), keepdims=0), integer(0))
        # Unique keeps the order in which rows come, so the first two that it finds are the boundary tokens
        rows = graph("Concat", boundary_ids, graph("Reshape", "ids", ints(-1, config.id_columns)), axis=0)
        words, _, row_of = graph.several("Unique", rows, outputs=["words", "", "row_of"], axis=0, sorted=0)
        table = _words(graph, config, words)  # (N, C) -> (N, P)
        row_of = graph("Slice", row_of, ints(2), ints(np.iinfo(np.int64).max))  # (2 + B T,) -> (B T,)
        places = graph("Reshape", row_of, graph("Shape", mask), allowzero=1)  # (B, T)
        bos, eos = 0, 1
    else:
        mask = graph("Greater", "ids", integer(0))
        table = _with_zero_row(graph, graph.weight("word_embedding"))  # (1 + words, P)
        places, (bos, eos) = "ids", boundary_ids.tolist()
    if config.architecture == "transformer":
        table = normalized(graph, table)
    num_steps = graph("Add", graph("Gather", graph("Shape", mask), integer(1)), integer(2))
    steps = graph("Range", integer(0), num_steps, integer(1))  # (S,)
    lengths = graph("ReduceSum", graph("Cast", mask, to=TensorProto.INT64), ints(1), keepdims=1)  # (B, 1)
    # <S>, the sentence, </S>; what follows is not read
    places = graph("Pad", places, ints(0, 1, 0, 1), integer(bos))  # (B, S)
    places = graph("Where", graph("Equal", steps, graph("Add", lengths, integer(1))), integer(eos), places)
    tokens = graph("Gather", table, graph("Transpose", places))  # (S, B, P)
    active = graph("Less", steps, graph("Add", lengths, integer(2)))  # (B, S)
    active = graph("Unsqueeze", graph("Cast", graph("Transpose", active), to=TensorProto.FLOAT), ints(2))
    return tokens, active, mask


def _words(graph: Graph, config: BiLMConfig, ids: str) -> str:
    """(N, C), or (N, 1 + C) of a lexicon -> (N, P)."""
    if config.num_lexicon_characters is None:
        x = _characters(graph, config, "char_encoder", ids)  # (N, F)
        return _linear(graph, "char_encoder.projection", x) if config.char_projection else x
    word, characters = graph.several(
        "Split", ids, ints(1, config.max_characters), outputs=["word", "characters"], axis=1
    )
    parts = []
    if config.word_dim:
        rows = _with_zero_row(graph, graph.weight("lexicon_encoder.word_embedding"))
        parts.append(graph("Gather", rows, graph("Squeeze", word, ints(1))))  # (N, word_dim)
    if config.filters:
        parts.append(_characters(graph, config, "lexicon_encoder.spelling", characters))  # (N, F)
    return _linear(graph, "lexicon_encoder.projection", graph("Concat", *parts, axis=1))


def _characters(graph: Graph, config: BiLMConfig, encoder: str, words: str) -> str:
    """(N, C) -> (N, F): convolutions, max over positions, highways."""
    # Columns of only pads are cut as in CharacterEncoder.trim; the row of zeros, if there is one, is not a word
    shifted_pad = len(graph.weights[f"{encoder}.char_embedding"])  # the pad is the last character
    is_word = graph("Greater", graph("ReduceMax", words, ints(1), keepdims=1), integer(0))  # (N, 1)
    is_used = graph("And", is_word, graph("Not", graph("Equal", words, integer(shifted_pad))))
    columns = graph("Where", is_used, np.arange(1, config.max_characters + 1), integer(0))
    widest = max(width for width, _ in config.filters)
    needed = graph("Add", graph("Reshape", graph("ReduceMax", columns), ints(1)), integer(widest))
    words = graph("Slice", words, ints(0), needed, ints(1))  # (N, C), where C may be smaller now

    characters = _with_zero_row(graph, graph.weight(f"{encoder}.char_embedding"))
    x = graph("Transpose", graph("Gather", characters, words), perm=[0, 2, 1])  # (N, d, C)
    maxima = []
    for k in range(len(config.filters)):
        name = f"{encoder}.convolutions.{k}"
        features = graph("Conv", x, graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias"))  # (N, n, positions)
        maxima.append(graph("ReduceMax", features, ints(2), keepdims=0))
    x = graph("Concat", *maxima, axis=1)  # (N, F)
    x = graph("Relu" if config.activation == "relu" else "Tanh", x)
    for k in range(config.num_highways):
        name = f"{encoder}.highways.{k}"
        gate = graph("Sigmoid", _linear(graph, f"{name}.carry", x))
        transformed = graph("Relu", _linear(graph, f"{name}.transform", x))
        x = graph("Add", x, graph("Mul", gate, graph("Sub", transformed, x)))
    return x


def _lstm(graph: Graph, config: BiLMConfig, layer: int, direction: int, inputs: str, active: str) -> str:
    """(S, B, P) -> (S, B, P): one layer, one direction; a Scan over the steps, whose body is one step."""
    input_weight, recurrent_weight, bias, projection = (
        graph.weight(f"layers.{layer}.{name}", direction)
        for name in ("input_weight", "recurrent_weight", "bias", "projection")
    )
    # bilm-tf adds 1 to the forget gate at run time, so no file's bias holds it
    forget = np.repeat(np.array([0, 0, 1, 0], np.float32), config.cell_dim)
    from_inputs = graph("Add", graph("MatMul", inputs, input_weight), graph("Add", bias, forget))  # (S, B, 4C)

    step = graph.body()
    h, c, from_input, is_active = (graph.new_name(stem) for stem in ("h", "c", "from_input", "is_active"))
    gates = step("Add", from_input, step("MatMul", h, recurrent_weight))  # (B, 4C)
    names = [graph.new_name(gate) for gate in "ijfo"]
    i, j, f, o = step.several("Split", gates, outputs=names, axis=1, num_outputs=4)  # (B, C) each
    candidate = step("Mul", step("Sigmoid", i), step("Tanh", j))
    c_next = _clip(step, step("Add", step("Mul", step("Sigmoid", f), c), candidate), config.cell_clip)
    h_next = step("MatMul", step("Mul", step("Sigmoid", o), step("Tanh", c_next)), projection)  # (B, P)
    # At padding the state is zero: backward, a row's padding comes first, and its state is still the one it starts
    # with; forward, it comes last, and nothing reads the state any more.
    h_next = step("Mul", _clip(step, h_next, config.proj_clip), is_active)
    c_next = step("Mul", c_next, is_active)
    output = step("Identity", h_next)

    hidden, cell = ("batch", config.projection_dim), ("batch", config.cell_dim)
    body = helper.make_graph(
        step.nodes,
        graph.new_name("step"),
        values_of({h: hidden, c: cell, from_input: ("batch", 4 * config.cell_dim), is_active: ("batch", 1)}),
        values_of({h_next: hidden, c_next: cell, output: hidden}),
    )
    num_rows = graph("Slice", graph("Shape", active), ints(1), ints(2))  # (1,)
    zeros = [
        graph("Expand", number(0), graph("Concat", num_rows, ints(width), axis=0))
        for width in (config.projection_dim, config.cell_dim)
    ]
    *_, outputs = graph.several(
        "Scan",
        *zeros,
        from_inputs,
        active,
        outputs=[graph.new_name(stem) for stem in ("last_h", "last_c", "outputs")],
        body=body,
        num_scan_inputs=2,
        scan_input_directions=[direction, direction],
        scan_output_directions=[direction],
    )
    return outputs


def _clip(graph: Graph, values: str, bound: float | None) -> str:
    return values if bound is None else graph("Clip", values, number(-bound), number(bound))


def _linear(graph: Graph, name: str, x: str) -> str:
    return graph("Gemm", x, graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias"), transB=1)


def _with_zero_row(graph: Graph, table: str) -> str:
    """Ids are shifted by one: 0 reads as zeros."""
    return graph("Pad", table, ints(1, 0, 0, 0))


def model_proto(
    graph: Graph, inputs: dict[str, Shape], outputs: dict[str, Shape], metadata: dict[str, str]
) -> ModelProto:
    """The file of a biLM's graph."""
    vectors = {name: shape for name, shape in outputs.items() if name != "mask"}
    results = [*values_of(vectors), *values_of({"mask": outputs["mask"]}, TensorProto.BOOL)]
    kinds = {"ids": TensorProto.INT64, "weights": TensorProto.FLOAT}
    read = [value for name, shape in inputs.items() for value in values_of({name: shape}, kinds[name])]
    model = file_of(graph, "bilm", read, results)
    helper.set_model_props(model, metadata)
    return model


def file_of(graph: Graph, name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> ModelProto:
    """A graph as a file, with the versions that every file of elmokit has."""
    return helper.make_model(
        helper.make_graph(graph.nodes, name, inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="elmokit",
        producer_version=__version__,
    )
