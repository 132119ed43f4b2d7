"""The explorer as a folder of static files: the model runs in the browser, without a server of ours.

Input: an `ELMo` that reads characters, and the files of onnxruntime-web. Output: a folder for any web server: the page,
the model in ONNX (int8), its vocabulary, and the runtime. Nothing in it is loaded from elsewhere.

One graph gives all that the page shows of a sentence: every layer, the slot and the sense. A second one, the output
layer, turns halves of slots into log-probabilities.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from elmokit import ELMo, __version__
from elmokit.arguments import check_path
from elmokit.extras import require
from elmokit.files import check_new_folder, write_json
from elmokit.inference.views import Layers
from elmokit.storage.folder import stored

require("onnx", extra="onnx")


from elmokit.integrations.onnx import bilm_layers, check_exportable, chosen_vectors, file_of, model_proto
from elmokit.integrations.onnx_graph import Graph, ints, number, values_of

RUNTIME_FILES: Final = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
TOKENIZERS: Final = ("treebank", "spaces", "characters")  # that js/text.js has
POLICY: Final = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)


@dataclass(frozen=True)
class WebFolder:
    """What was written."""

    path: Path
    num_bytes: int
    """Of all files."""
    model_bytes: int
    """Of the files of the model, which the page loads before its first answer."""


def find_runtime(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder with the files of onnxruntime-web.

    Args:
        folder: The npm package, or its folder `dist`. None looks for `node_modules/onnxruntime-web` here and above.

    Raises:
        ValueError: If a file is missing. The message says how to get it.
    """
    advice = "run `npm install onnxruntime-web`, or pass the folder of that package (--runtime)"
    here = Path.cwd()
    tried = [place / "node_modules" / "onnxruntime-web" for place in (here, *here.parents)]
    if folder is not None:
        tried = [Path(check_path("runtime", folder))]
    for place in (option for root in tried for option in (root, root / "dist")):
        if all((place / name).is_file() for name in RUNTIME_FILES):
            return place
    where = "there is no node_modules/onnxruntime-web here or above" if folder is None else f"{folder}"
    raise ValueError(f"{where}: {', '.join(RUNTIME_FILES)} are needed: {advice}")


def export_web(
    model: ELMo, folder: str | os.PathLike[str], *, name: str = "elmokit", runtime: str | os.PathLike[str] | None = None
) -> WebFolder:
    """Write the explorer page with the model inside.

    Args:
        model: A model that reads characters, with a vocabulary.
        folder: The folder to write; files of the same names are replaced.
        name: Name of the model on the page.
        runtime: The npm package onnxruntime-web or its folder `dist`; None finds it in `node_modules`.

    Returns:
        The folder and its size.

    Raises:
        ValueError: If the model cannot run in the page, the runtime is missing, or the path is that of a file.
    """
    target, source = Path(check_path("folder", folder)), find_runtime(runtime)
    check_new_folder(target)
    check_exportable(model)
    _check_web(model)
    page = resources.files("elmokit").joinpath("serve", "page")
    with resources.as_file(page) as files:
        shutil.copytree(files, target, dirs_exist_ok=True)
    (target / "runtime").mkdir(exist_ok=True)
    for file in RUNTIME_FILES:
        shutil.copyfile(source / file, target / "runtime" / file)
    html = (target / "index.html").read_text(encoding="utf-8")
    html = html.replace('<html lang="en">', '<html lang="en" data-model="model">')
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    html = html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}')
    (target / "index.html").write_text(html, encoding="utf-8")
    model_bytes = _write_model(model, target / "model", name)
    num_bytes = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    return WebFolder(target, num_bytes, model_bytes)


def _check_web(model: ELMo) -> None:
    if model.config.id_columns != model.config.max_characters:
        raise ValueError("the page runs models that read characters; this one reads words: serve it with elmokit serve")
    if model.vocabulary is None:
        raise ValueError("the page needs a model with a vocabulary, this one has none: serve it with elmokit serve")
    if model.tokenizer.name not in TOKENIZERS:
        names = ", ".join(TOKENIZERS)
        raise ValueError(f"the page has the tokenizers {names}, this model needs {model.tokenizer.name}")


def _write_model(model: ELMo, folder: Path, name: str) -> int:
    """Write the graphs, the words and what the page must know of them; returns the number of bytes."""
    assert model.vocabulary is not None
    folder.mkdir(exist_ok=True)
    files = {"bilm.onnx": _bilm_graph(model)}
    if model.output_layer is not None:
        files["output.onnx"] = _output_graph(model)
    weights = model.word_weights
    words = {
        "words": model.vocabulary.words,
        "weights": [round(weights.known.get(word, weights.unknown), 7) for word in model.vocabulary.words],
        "unknown": weights.unknown,
    }
    files["words.json"] = json.dumps(words, ensure_ascii=False, separators=(",", ":")).encode()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    info = {
        "model_id": name,
        "version": __version__,
        "num_layers": model.num_layers,
        "vector_dim": model.dim,
        "language_model": model.is_language_model,
        "vocabulary_size": len(model.vocabulary),
        "tasks": [],
        "task_kinds": {},
        "index_words": None,
        "tokenizer": model.tokenizer.name,
        "max_characters": model.config.max_characters,
        "specials": [model.vocabulary.bos_id, model.vocabulary.eos_id, model.vocabulary.unk_id],
        "files": {file: len(content) for file, content in files.items()},
    }
    write_json(folder / "model.json", info)
    return sum(map(len, files.values()))


def _bilm_graph(model: ELMo) -> bytes:
    """ids and weights -> every layer, the slot and the sense of each token."""
    config = model.config
    graph = Graph(stored({name: t.detach().cpu() for name, t in model.bilm.state_dict().items()}, "int8"))
    computed, mask = bilm_layers(graph, config, model.bilm.boundary_ids.cpu().numpy())
    axes: tuple[str | int, ...] = ("batch", "tokens")
    shape = (*axes, model.dim)
    outputs = {"layers": (model.num_layers, *shape), "slot": shape, "sense": shape, "mask": axes}
    views: dict[str, Layers] = {"layers": "all", "slot": "slot", "sense": "sense"}
    for output, view in views.items():
        vectors = chosen_vectors(graph, view, computed, mask, {}, model.dim)
        graph("Where", graph("Unsqueeze", mask, ints(2)), vectors, number(0), output=output)
    graph("Identity", mask, output="mask")
    inputs = {"ids": (*axes, config.max_characters), "weights": axes}
    return bytes(model_proto(graph, inputs, outputs, {"elmokit_version": __version__}).SerializeToString())


def _output_graph(model: ELMo) -> bytes:
    """hidden (N, P) -> log_probs (N, V) of the output layer."""
    assert model.output_layer is not None
    tensors = {name: t.detach().cpu() for name, t in model.output_layer.state_dict().items()}
    graph = Graph(stored(tensors, "int8"))
    scores = graph("Gemm", "hidden", graph.weight("weight"), graph.weight("bias"), transB=1)
    graph("LogSoftmax", scores, axis=1, output="log_probs")
    num_words, width = tensors["weight"].shape
    inputs, outputs = values_of({"hidden": ("rows", width)}), values_of({"log_probs": ("rows", num_words)})
    return bytes(file_of(graph, "output", inputs, outputs).SerializeToString())
