"""All probes over a folder of data: which of them can run, their figures, and how a stopped run resumes.

Input: a model, a folder laid out as below, text files. Output: a `ProbeReport`, which can be written as JSON. Finished
probes are kept in a file and not run again while the weights and the data are the same.

    pos/*-ud-{train,dev,test}.conllu
    wsd/NAME/NAME.data.xml and .gold.key.txt (semcor, semeval2007, senseval2, senseval3, semeval2013)
    wsd/wordnet/index.sense
    similarity/wic/NAME/NAME.data.txt and .gold.txt (train, dev)
    similarity/scws/ratings.txt

Each file may be gzipped, its name then ending in .gz.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from elmokit.arguments import check_callable, check_instance, check_integer, check_path, check_paths, check_string
from elmokit.corpus import prepare
from elmokit.corpus.heldout import heldout_perplexity
from elmokit.corpus.sources import find_files, read_blocks, sentences, tokenized_of
from elmokit.datasets import read_conllu, read_scws, read_sense_index, read_wic, read_wsd
from elmokit.files import replacing, sha256_of
from elmokit.inference.scores import Perplexity, TokenLogProbs, perplexity_of
from elmokit.model import ELMo
from elmokit.network import OutputLayer
from elmokit.probes.blanks import BLANKS, fill_blanks
from elmokit.probes.chinese_senses import CHINESE_TRIPLES
from elmokit.probes.disambiguation import as_phrases, disambiguate
from elmokit.probes.neighbours import nearest_in_context, neighbours_of_words
from elmokit.probes.senses import SENSE_TRIPLES, SenseTriple
from elmokit.probes.similarity import likeness, same_meaning, sense_triples
from elmokit.probes.tags import TaggedSplits, probe_tags
from elmokit.probes.vectors import VIEWS, Progress, view_names
from elmokit.text import Vocabulary

PROBES = ("senses", "words", "blanks", "wic", "scws", "pos", "wsd", "perplexity", "contexts")  # the quick ones first
WITHOUT_DATA = ("senses", "words", "blanks")
DEV, TESTS = "semeval2007", ("senseval2", "senseval3", "semeval2013")
# Misspelled, inflected by analogy, or made up; chosen before any model was tried.
NEW_WORDS = ("goverment", "definately", "Frnace", "beautifull", "untouristy", "googling", "Smithville", "re-electable")
SENTENCE_TOKENS = 35_000  # of each text whose sentences are scored one by one
SENTENCES_AT_ONCE = 64
QUERIES = (
    "The shortstop made a brilliant [play] at second base .",
    "She had a small part in a [play] on Broadway .",
    "He keeps all his money in the [bank] on Main Street .",
    "They sat on the [bank] of the river and watched the boats .",
)


@dataclass
class ProbeReport:
    """The figures of one model, probe by probe."""

    model: str
    weights: str
    """SHA-256 of the weights."""
    layers: list[str]
    machine: dict[str, str]
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Probe -> {"data": SHA-256 of its files, "seconds": …, "date": …, "result": its dataclass as a mapping}."""


@dataclass(frozen=True)
class SentencePerplexity:
    """The perplexity of the first sentences of a text, each read from a zero state."""

    num_sentences: int
    num_tokens: int
    """Number of tokens, without sentence boundaries."""
    unknown: float
    """Percentage of the tokens that are not in the vocabulary."""
    perplexity: Perplexity


def find_probes(data: Path | None, heldout: Sequence[Path] = ()) -> dict[str, list[Path]]:
    """Find the probes that can run.

    Args:
        data: A folder laid out as at the top of this file.
        heldout: Text files whose perplexity is measured.

    Returns:
        Probe -> the files that it reads; those of WITHOUT_DATA need none.

    Raises:
        ValueError: If a folder or file does not exist, or a text has no sentence.
    """
    data = None if data is None else Path(check_path("data", data))
    if data is not None and not data.is_dir():
        raise ValueError(f"{data}: there is no such folder")
    heldout = [Path(path) for path in check_paths("heldout", heldout)]
    for path in heldout:
        if not path.is_file():
            raise ValueError(f"{path}: there is no such file")
        if not any(block.content.strip() for block in read_blocks([path], None)):
            raise ValueError(f"there is no sentence in {path}")

    def find(*patterns: str) -> list[Path]:
        """One file for each pattern, or nothing."""
        found = [sorted([*data.glob(one), *data.glob(f"{one}.gz")])[:1] for one in patterns] if data is not None else []
        return [path for one in found for path in one] if all(found) else []

    semcor = find("wsd/semcor/semcor.data.xml")
    sets = find("wsd/wordnet/index.sense", *(f"wsd/{name}/{name}.data.xml" for name in ("semcor", DEV, *TESTS)))
    keys = find(*(f"wsd/{name}/{name}.gold.key.txt" for name in ("semcor", DEV, *TESTS)))
    files = {
        "wic": find(
            *(f"similarity/wic/{part}/{part}.{kind}.txt" for kind in ("data", "gold") for part in ("train", "dev"))
        ),
        "scws": find("similarity/scws/ratings.txt"),
        "pos": find(*(f"pos/*-ud-{part}.conllu" for part in ("train", "dev", "test"))),
        "wsd": [*sets, *keys] if sets and keys else [],
        "perplexity": list(heldout),
        "contexts": semcor,
    }
    return {name: files.get(name, []) for name in PROBES if name in WITHOUT_DATA or files[name]}


def run_probes(
    model: ELMo,
    name: str,
    files: Mapping[str, list[Path]],
    *,
    keep: Path | None = None,
    progress: Progress | None = None,
    on_probe: Callable[[str, str], None] | None = None,
) -> ProbeReport:
    """Run probes.

    Args:
        model: The model.
        name: Its name in the report.
        files: Probes and their files, from `find_probes`.
        keep: A JSON file for finished probes. Those that it has of the same weights and data are not run again; others
            of the same weights stay in it.
        progress: Called after each batch.
        on_probe: Called with each probe and "runs", "done", "kept", or the reason why it is left out.

    Raises:
        ValueError: If `keep` is not a report, or data cannot be read.
    """
    check_instance("model", model, ELMo, "a model, such as ELMo.from_pretrained()")
    check_string("name", name)
    check_callable("progress", progress)
    check_callable("on_probe", on_probe)
    keep = None if keep is None else Path(check_path("keep", keep))
    report = ProbeReport(
        model=name,
        weights=_digest_weights(model),
        layers=view_names(model),
        machine={"device": str(model.device), "threads": str(torch.get_num_threads()), "torch": torch.__version__},
    )
    say = on_probe or (lambda probe, state: None)
    if keep is not None and keep.is_file():
        kept = read_report(keep)
        if kept.weights == report.weights:
            report.probes.update(kept.probes)
    for probe, paths in files.items():
        if (reason := _reason_against(model, probe)) is not None:
            say(probe, reason)
            continue
        data = _digest_files(model, paths, probe)
        if report.probes.get(probe, {}).get("data") == data:
            say(probe, "kept")
            continue
        say(probe, "runs")
        begin = time.monotonic()
        result = run_probe(model, probe, paths, progress=progress)
        seconds = round(time.monotonic() - begin, 1)
        report.probes[probe] = {
            "data": data,
            "seconds": seconds,
            "date": datetime.now(UTC).date().isoformat(),
            "result": result,
        }
        if keep is not None:
            with replacing(keep) as temporary:
                temporary.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        say(probe, "done")
    return report


def read_report(path: str | Path) -> ProbeReport:
    """Read a report that `run_probes` kept.

    Raises:
        ValueError: If the file is not a report.
    """
    content = Path(check_path("path", path))
    try:
        return ProbeReport(**json.loads(content.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a report of probes ({error}): name another file, or remove it") from None


def run_probe(model: ELMo, probe: str, paths: Sequence[Path], *, progress: Progress | None = None) -> dict[str, Any]:
    """Run one probe.

    Args:
        model: The model.
        probe: One of PROBES.
        paths: Its files, from `find_probes`.
        progress: Called after each batch.

    Returns:
        The figures as JSON values.
    """
    match probe:
        case "senses":
            return asdict(sense_triples(model, _triples(model)))
        case "words":
            found = neighbours_of_words(model, NEW_WORDS)
            return {word: [asdict(one) for one in nearest] for word, nearest in found.items()}
        case "blanks":
            return {one.sentence: asdict(one) for one in fill_blanks(model)}
        case "wic":
            train, test = (read_wic(path, gold) for path, gold in zip(paths[:2], paths[2:], strict=True))
            return asdict(same_meaning(model, train, test, progress=progress))
        case "scws":
            return asdict(likeness(model, read_scws(paths[0]), progress=progress))
        case "pos":
            sets = {
                column: TaggedSplits(*(read_conllu(path, column=column) for path in paths))
                for column in ("upos", "xpos")
            }
            return {column: asdict(scores) for column, scores in probe_tags(model, sets, progress=progress).items()}
        case "wsd":
            index, semcor, *tests = paths[: len(TESTS) + 3]
            sets_by_name = {name: read_wsd(path) for name, path in zip((DEV, *TESTS), tests, strict=True)}
            scores = disambiguate(
                model, read_wsd(semcor), sets_by_name, read_sense_index(index), dev=DEV, progress=progress
            )
            return asdict(scores)
        case "perplexity":
            return {
                path.name: {
                    **asdict(text_perplexity(model, path, progress=progress)),
                    "sentences": asdict(sentence_perplexity(model, path, progress=progress)),
                }
                for path in paths
            }
        case "contexts":
            corpus = [[word for phrase in as_phrases(one) for word in phrase] for one in read_wsd(paths[0])]
            nearest = nearest_in_context(model, QUERIES, corpus, progress=progress)
            return {query: [asdict(one) for one in found] for query, found in zip(QUERIES, nearest, strict=True)}
    raise ValueError(f"there is no probe {probe!r}: they are {', '.join(PROBES)}")


def text_perplexity(model: ELMo, path: Path, *, progress: Progress | None = None) -> Perplexity:
    """Perplexity of a text by the full softmax, with carried state; sentence ends are predicted too.

    Args:
        model: A language model, whose tokenizer cuts the text.
        path: A text file, one sentence per line.
        progress: Called while the text is prepared, with bytes; then after each batch, with predictions.

    Raises:
        ValueError: If the model is not a language model.
    """
    output_layer, vocabulary = _language_model(model)
    check_path("path", path)
    with tempfile.TemporaryDirectory(prefix="elmokit-") as folder:
        corpus = prepare(
            str(path),
            folder,
            vocabulary=vocabulary,
            tokenized=tokenized_of(model.tokenizer.name),
            max_characters=model.config.max_characters,
            progress=progress,
        )
        return heldout_perplexity(model.bilm, output_layer, corpus, unk_id=vocabulary.unk_id, progress=progress)


def sentence_perplexity(
    model: ELMo, path: Path, *, num_tokens: int = SENTENCE_TOKENS, progress: Progress | None = None
) -> SentencePerplexity:
    """Perplexity of the first sentences of a text by the full softmax, each read from a zero state.

    Args:
        model: A language model, whose tokenizer cuts the text.
        path: A text file, one sentence per line.
        num_tokens: Sentences are taken from the start of the text until they have this many tokens.
        progress: Called after each batch.

    Raises:
        ValueError: If the model is not a language model, or there is no sentence.
    """
    _language_model(model)
    check_integer("num_tokens", num_tokens, least=1)
    check_callable("progress", progress)
    chosen = _first_sentences(Path(check_path("path", path)), model, num_tokens)
    if not chosen:
        raise ValueError(f"there is no sentence in {path}")
    chosen.sort(key=len)  # little padding; the scores do not depend on the batches
    scores: list[TokenLogProbs] = []
    done, total = 0, sum(map(len, chosen))
    for begin in range(0, len(chosen), SENTENCES_AT_ONCE):
        scores += model.log_probs(chosen[begin : begin + SENTENCES_AT_ONCE])
        done += sum(map(len, chosen[begin : begin + SENTENCES_AT_ONCE]))
        if progress is not None:
            progress(done, total)
    perplexity = perplexity_of(scores)
    assert perplexity.num_unknown is not None
    return SentencePerplexity(len(chosen), total, 100 * perplexity.num_unknown / total, perplexity)


def _first_sentences(path: Path, model: ELMo, num_tokens: int) -> list[list[str]]:
    """The sentences from the start of a text, up to the one that reaches this many tokens."""
    chosen, count = [], 0
    for block in read_blocks(find_files(path), None):
        lines, _ = sentences(block.content, tokenized=tokenized_of(model.tokenizer.name))
        for tokens in filter(None, lines):
            chosen.append(tokens)
            count += len(tokens)
            if count >= num_tokens:
                return chosen
    return chosen


def _language_model(model: ELMo) -> tuple[OutputLayer, Vocabulary]:
    """The output layer and the vocabulary of a model; an error if it has none."""
    check_instance("model", model, ELMo, "a model, such as ELMo.from_pretrained()")
    if model.output_layer is None or model.vocabulary is None:
        raise ValueError("this model has no softmax, so it is not a language model: load a folder that has one")
    return model.output_layer, model.vocabulary


def _reason_against(model: ELMo, probe: str) -> str | None:
    if probe in ("perplexity", "blanks") and (model.output_layer is None or model.vocabulary is None):
        return "left out: the model has no softmax"
    english = {"characters": ("senses", "blanks"), "han": ("blanks", "words")}  # "senses" has Chinese triples too
    if probe in english.get(model.tokenizer.name, ()):
        return "left out: its English words are not tokens of this model, which reads text character by character"
    if probe == "words" and (model.vocabulary is None or model.reads_words):
        return "left out: it needs a model that reads characters and has a vocabulary"
    return None


def _triples(model: ELMo) -> tuple[SenseTriple, ...]:
    """The sense triples of the language that the model reads."""
    return CHINESE_TRIPLES if model.tokenizer.name == "han" else SENSE_TRIPLES


def _digest_weights(model: ELMo) -> str:
    """SHA-256 of the biLM and the softmax."""
    digest = hashlib.sha256(model.digest().encode())
    for name, tensor in sorted(model.output_layer.state_dict().items()) if model.output_layer is not None else ():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _digest_files(model: ELMo, paths: Sequence[Path], probe: str) -> str:
    """SHA-256 of a probe's data, part of which is in this package."""
    own: dict[str, Any] = {"senses": (_triples(model), VIEWS), "words": NEW_WORDS, "contexts": (QUERIES, VIEWS)}
    own["blanks"] = BLANKS
    own |= dict.fromkeys(("wic", "scws", "wsd"), VIEWS)  # figures of version 0.2 had only layers
    own["perplexity"] = ("single sentences", SENTENCE_TOKENS)  # those of version 0.2 were of running text only
    digest = hashlib.sha256(repr(own.get(probe)).encode())
    for path in paths:
        digest.update(path.name.encode() + bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()
