"""ELMo: the one class that users hold.

Enters: sentences, as strings or token lists, or character ids inside a user's own network.  Leaves: vectors: NumPy
arrays from `embed` and `encode`, tensors with gradients from `forward`, numbers from the language model.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmokit import storage as formats
from elmokit.inference import scores as evaluate
from elmokit.inference.batches import Batch, one_ahead, plan
from elmokit.inference.scores import Perplexity, Substitute, TokenLogProbs
from elmokit.inference.word_cache import WordCache
from elmokit.network import BiLM, BiLMOutput, BiLMState, ScalarMix, to_device
from elmokit.network.losses import OutputLayer
from elmokit.storage import downloads
from elmokit.storage import folder as checkpoint
from elmokit.storage import names as hub
from elmokit.storage.folder import ModelFiles
from elmokit.text import BOS_TOKEN, EOS_TOKEN, Lexicon, Vocabulary, as_list, as_tokens, marked_word, words_to_ids

Sentence = str | Sequence[str]
Layers = Literal["average", "top", "all"] | int
StateRule = Literal["stateless", "carry"]

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}  # padded tokens of one batch
SENTENCES_AT_ONCE = 16384  # tokenized and sorted by length together, while the ones before them run
CARRIED_ROWS = 64  # rows of a batch whose state is carried, unless batch_size says otherwise
CACHED_WORDS = 65536


@dataclass(frozen=True)
class ELMoOutput:
    """What `ELMo.forward` gives a task."""

    mixes: list[Tensor]
    """One (B, T, 2P) for each mix."""
    mask: Tensor
    """(B, T) bool: True where a token stands."""
    layers: Tensor
    """(L+1, B, T, 2P)."""


class ELMo(nn.Module):
    """A biLM with its mixes; with an output layer and a vocabulary it is a language model too.

    Stateless unless told otherwise: a sentence's vectors are the same alone, in any batch, in any order.  With
    `state="carry"` each row of a batch starts where the same row of the batch before it ended, as the published code
    does; `reset_state` forgets.
    """

    def __init__(
        self,
        bilm: BiLM,
        *,
        freeze: bool = True,
        num_mixes: int = 1,
        dropout: float = 0.5,
        layer_norm: bool = False,
        keep_boundaries: bool = False,
        state: StateRule = "stateless",
        output_layer: OutputLayer | None = None,
        vocabulary: Vocabulary | None = None,
        lexicon: Lexicon | None = None,
    ) -> None:
        super().__init__()
        if num_mixes < 0:
            raise ValueError(f"num_mixes must be 0 or more, not {num_mixes}")
        if state not in ("stateless", "carry"):
            raise ValueError(f'state must be "stateless" or "carry", not {state!r}')
        if bilm.config.num_words is not None and (vocabulary is None or len(vocabulary) != bilm.config.num_words):
            held = "none came" if vocabulary is None else f"one of {len(vocabulary)} came"
            raise ValueError(f"a word-level model of {bilm.config.num_words} words needs its vocabulary; {held}")
        checkpoint.check_lexicon(lexicon, bilm.config, "lexicon=")
        self.bilm = bilm
        self.mixes = nn.ModuleList(
            ScalarMix(bilm.config.num_layers + 1, layer_norm=layer_norm) for _ in range(num_mixes)
        )
        self.dropout = nn.Dropout(dropout)
        self.output_layer = output_layer
        self.vocabulary = vocabulary
        self.lexicon = lexicon
        self.freeze, self.layer_norm, self.keep_boundaries, self.state = freeze, layer_norm, keep_boundaries, state
        for module in (bilm, output_layer):
            if module is not None:
                module.requires_grad_(not freeze)
        self._words = WordCache(self._embed_words, CACHED_WORDS)
        self._carried: BiLMState | None = None
        self._lock = threading.RLock()

    # ---- from and to files -------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str] | None = None,
        *,
        freeze: bool = True,
        num_mixes: int | None = None,
        dropout: float = 0.5,
        layer_norm: bool | None = None,
        keep_boundaries: bool = False,
        state: StateRule = "stateless",
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        quantize: Literal["int8"] | None = None,
        progress: downloads.Progress | None = None,
    ) -> ELMo:
        """The embedded model; or a folder, an official name ("small", "original", …), or a Hugging Face id.

        A folder is one of ours, an official pair, a bilm-tf training folder (TensorFlow) or one of ELMoForManyLangs.

        `num_mixes` and `layer_norm` are those of the folder (one plain mix where it has none) unless given here; mixes
        that were saved are loaded where their number is the same.
        """
        files = hub.read(hub.resolve(name, progress=progress))
        saved_mixes = len({n.split(".")[1] for n in files.weights if n.startswith("mixes.")})
        model = cls._from_model_files(
            files,
            freeze=freeze,
            num_mixes=(saved_mixes or 1) if num_mixes is None else num_mixes,
            dropout=dropout,
            layer_norm=bool(files.settings.get("layer_norm", False)) if layer_norm is None else layer_norm,
            keep_boundaries=keep_boundaries,
            state=state,
        )
        return model._placed(device, dtype, quantize)

    @classmethod
    def from_files(
        cls,
        options: str | os.PathLike[str],
        weights: str | os.PathLike[str],
        *,
        vocabulary: str | os.PathLike[str] | None = None,
        embeddings: str | os.PathLike[str] | None = None,
        softmax: str | os.PathLike[str] | None = None,
        freeze: bool = True,
        num_mixes: int = 1,
        dropout: float = 0.5,
        layer_norm: bool = False,
        keep_boundaries: bool = False,
        state: StateRule = "stateless",
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        quantize: Literal["int8"] | None = None,
        progress: downloads.Progress | None = None,
    ) -> ELMo:
        """The official files as they were downloaded; each may be a URL.

        `weights` may also be the `.index` file of a TensorFlow checkpoint, whose softmax comes with the vocabulary.
        `vocabulary` names the rows of `softmax` (which makes a language model) and of `embeddings` (a token-embedding
        file, which makes a word-level model).
        """
        options_path, weights_path = (
            downloads.fetch(options, progress=progress),
            downloads.fetch(weights, progress=progress),
        )
        others = {
            f"{name}_path": downloads.fetch(given, progress=progress)
            for name, given in {"vocabulary": vocabulary, "embeddings": embeddings, "softmax": softmax}.items()
            if given is not None
        }
        model = cls._from_model_files(
            formats.read_official_model(options_path, weights_path, **others),
            freeze=freeze,
            num_mixes=num_mixes,
            dropout=dropout,
            layer_norm=layer_norm,
            keep_boundaries=keep_boundaries,
            state=state,
        )
        return model._placed(device, dtype, quantize)

    @classmethod
    def _from_model_files(cls, files: ModelFiles, *, num_mixes: int, **settings: Any) -> ELMo:
        with torch.device("meta"):  # no time spent on initial values that the files replace
            bilm = BiLM(files.config)
        bilm.load_weights({name: t.float() for name, t in files.weights.items() if not name.startswith("mixes.")})
        output_layer = None
        if files.softmax is not None:
            # not on the meta device, where randn imports half of torch's compiler; the caller's draws stay as they are
            with torch.random.fork_rng(devices=[]):
                output_layer = OutputLayer(1, 1)
            output_layer.weight, output_layer.bias = (
                nn.Parameter(files.softmax[n].float()) for n in ("weight", "bias")
            )
        model = cls(
            bilm,
            num_mixes=num_mixes,
            output_layer=output_layer,
            vocabulary=files.vocabulary,
            lexicon=files.lexicon,
            **settings,
        )
        mixes = {name.removeprefix("mixes."): t for name, t in files.weights.items() if name.startswith("mixes.")}
        if len(mixes) == 2 * num_mixes:
            model.mixes.load_state_dict(mixes)
        return model.eval()

    def _placed(self, device: str | torch.device | None, dtype: torch.dtype, quantize: str | None) -> ELMo:
        self.to(device=device, dtype=dtype)
        if quantize is not None:
            if quantize != "int8" or dtype != torch.float32 or not self.freeze:
                raise ValueError(
                    f'quantize is "int8" or None, for a frozen model in float32; here quantize={quantize!r}, '
                    f"dtype={dtype}, freeze={self.freeze}"
                )
            self.bilm.quantize()
        return self

    def save_pretrained(self, folder: str | os.PathLike[str], *, dtype: checkpoint.Storage | None = None) -> None:
        """Write our folder format: biLM, mixes, and where there are any the output layer and the vocabulary.

        `dtype` is how the weights are stored, by default as the model holds them; "float16" takes half of float32's
        room and "int8" a quarter.  A folder of any kind loads as float32.
        """
        self._refuse_int8()
        weights = {name: t.cpu() for name, t in self.bilm.state_dict().items()}
        weights |= {f"mixes.{name}": t.cpu() for name, t in self.mixes.state_dict().items()}
        softmax = None
        if self.output_layer is not None:
            softmax = {name: t.cpu() for name, t in self.output_layer.state_dict().items()}
        settings = {"layer_norm": self.layer_norm}
        files = ModelFiles(self.config, weights, softmax, self.vocabulary, settings, self.lexicon)
        checkpoint.save(files, folder, card=self._card(), storage=dtype)

    def export_hdf5(self, folder: str | os.PathLike[str]) -> None:
        """Write the official format: options.json, weights.hdf5; a language model also softmax.hdf5, vocabulary.txt."""
        self._refuse_int8()
        folder = Path(folder)
        formats.write_official(self.config, self.bilm.state_dict(), folder)
        if self.output_layer is not None:
            formats.write_softmax(self.output_layer.state_dict(), folder / "softmax.hdf5")
        if self.vocabulary is not None:
            self.vocabulary.save(folder / checkpoint.VOCABULARY_FILE)

    def _refuse_int8(self) -> None:
        if self.bilm.is_int8:
            raise ValueError("this model's weights were rounded to int8: load it without quantize to write it")

    def export_token_embeddings(self, vocabulary: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
        """Write the context-free vector of each word of a vocabulary file, as bilm-tf's `dump_token_embeddings` did."""
        with torch.no_grad():
            vectors = self._embed_words(Vocabulary.load(Path(vocabulary)).words)
        formats.write_token_embeddings(vectors, path)

    def _card(self) -> str:
        config = self.config
        kind = "characters" if config.num_words is None else f"{config.num_words:,} words"
        if self.lexicon is not None:
            kind = f"{len(self.lexicon.characters):,} characters and {len(self.lexicon.words):,} words"
        size = f"{config.num_layers} layers of {config.cell_dim} cells, projection {config.projection_dim}"
        count = sum(p.numel() for p in self.bilm.parameters())
        return (
            f"# A biLM over {kind}\n\n{size}; {count:,} parameters.\n\n"
            '```python\nfrom elmokit import ELMo\n\nmodel = ELMo.from_pretrained("this folder")\n```\n'
        )

    # ---- inside a user's own network ---------------------------------------------------------------------------------

    def forward(self, ids: Tensor) -> ELMoOutput:
        """Ids from `batch_to_ids` (or `to_ids`, for any kind of model) -> mixes, mask and layers.

        Gradients reach the mixes; they reach the biLM too where `freeze` is False.
        """
        if isinstance(ids, Tensor):  # anything else is refused by the biLM, with a clear word
            ids = ids.to(self.device)
        keep = self.keep_boundaries or self.layer_norm  # the published layer norm counts the boundary tokens
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            output = self._carrying(len(ids), lambda state: self.bilm(ids, state=state, keep_boundaries=keep))
        mixes = [mix(output.layers, output.mask) for mix in self.mixes]  # (B, T, 2P) each
        layers, mask = output.layers, output.mask
        if keep and not self.keep_boundaries:
            mask = mask[:, 2:]
            layers = layers[:, :, 1:-1] * mask.unsqueeze(-1)
            mixes = [mixed[:, 1:-1] * mask.unsqueeze(-1) for mixed in mixes]
        return ELMoOutput([self.dropout(mixed) for mixed in mixes], mask, layers)

    def mix_l2(self) -> Tensor:
        """Sum of squares of all mixes' layer weights: add `lambda` times this to a task's loss."""
        zero = torch.zeros((), device=self.device)
        return sum((mix.l2() for mix in self.mixes if isinstance(mix, ScalarMix)), zero)

    def to_ids(self, sentences: Sequence[Sentence]) -> Tensor:
        """Sentences -> the ids that `forward` reads: (B, T, 50) characters, or (B, T) words of a word-level model.

        Of a model with a lexicon of its own (B, T, 51): each word, then its characters.
        """
        tokens = as_tokens(sentences)
        columns = self.config.id_columns
        shape = (len(tokens), max(map(len, tokens), default=0), *(() if columns is None else (columns,)))
        ids = torch.zeros(shape, dtype=torch.long)
        for row, sentence in zip(ids, tokens, strict=True):
            row[: len(sentence)] = self._word_ids(sentence)
        return ids

    def reset_state(self) -> None:
        """Forget the carried state: the next batch starts from zeros."""
        with self._lock:
            self._carried = None

    def forget_words(self) -> None:
        """Empty the cache of context-free word vectors (it empties itself when the weights change)."""
        self._words.forget()

    # ---- vectors -----------------------------------------------------------------------------------------------------

    def embed(
        self,
        sentences: Sequence[Sentence],
        *,
        layers: Layers = "average",
        batch_size: int | None = None,
        show_progress: bool = False,
        convert_to_tensor: bool = False,
    ) -> list[Any]:
        """One array for each sentence: (T, 2P), or (L+1, T, 2P) with `layers="all"`; strings are tokenized first.

        `layers`: "average" is the even mix, "top" the last layer, an int one layer (0 is the context-free one).
        `batch_size` bounds the sentences of a batch; batches are made by length and bounded in tokens in any case.
        """
        select, sentences = self._selection(layers), as_list(sentences)
        results: list[Any] = [None] * len(sentences)
        for batch, output in self._run(sentences, batch_size, show_progress):
            rows = select(output.layers).movedim(-3, 0)  # (B, …, T, 2P)
            if not convert_to_tensor:
                rows = rows.to(torch.promote_types(rows.dtype, torch.float32)).cpu()  # NumPy knows no bfloat16
            for position, length, row in zip(batch.positions, batch.lengths, rows.unbind(), strict=True):
                vectors = row.narrow(-2, 0, length)
                # an array is a copy: a view would keep the whole batch
                results[position] = vectors if convert_to_tensor else vectors.numpy().copy()
        return results

    def encode(
        self,
        sentences: Sentence | Sequence[Sentence],
        *,
        layers: Layers = "average",
        batch_size: int | None = None,
        normalize: bool = False,
        show_progress: bool = False,
        convert_to_tensor: bool = False,
    ) -> Any:
        """Sentence vectors (n, 2P): the mean of the token vectors, padding left out; (2P,) for one string.

        An empty sentence is zeros.  `normalize` gives vectors of length one.
        """
        if layers == "all":
            raise ValueError('encode gives one vector a sentence: layers="all" is for embed')
        if isinstance(sentences, str):
            return self.encode([sentences], layers=layers, normalize=normalize, convert_to_tensor=convert_to_tensor)[0]
        select, sentences = self._selection(layers), as_list(sentences)
        dtype = torch.promote_types(next(self.bilm.parameters()).dtype, torch.float32)
        result = torch.zeros(len(sentences), 2 * self.config.projection_dim, device=self.device, dtype=dtype)
        for batch, output in self._run(sentences, batch_size, show_progress):
            totals = select(output.layers).sum(dim=1, dtype=dtype)  # padding is zero, so it adds nothing
            counts = output.mask.sum(dim=1, keepdim=True).clamp(min=1)
            result[torch.tensor(batch.positions, device=self.device)] = totals / counts
        if normalize:
            result = nn.functional.normalize(result, dim=-1)
        return result if convert_to_tensor else result.cpu().numpy()

    def similarity(
        self, first: Sentence, second: Sentence, *, word: str | None = None, layers: Layers = "average"
    ) -> float:
        """Cosine of two sentences; with `word`, of that word's vectors in the two sentences (first occurrence)."""
        if word is None:
            a, b = self.encode([first, second], layers=layers)
        else:
            if layers == "all":
                raise ValueError('similarity compares one vector a word: layers="all" is for embed')
            tokens = as_tokens([first, second])
            places = [_find(word, sentence) for sentence in tokens]
            a, b = (vectors[place] for vectors, place in zip(self.embed(tokens, layers=layers), places, strict=True))
        return float(np.dot(a, b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))

    # ---- the language model ------------------------------------------------------------------------------------------

    def log_probs(self, sentences: Sequence[Sentence]) -> list[TokenLogProbs]:
        """Log-probability of every token, from the words before it and from the words after it."""
        output_layer, vocabulary = self._language_model()
        return evaluate.token_log_probs(self.bilm, output_layer, vocabulary, as_tokens(sentences))

    def perplexity(self, sentences: Sequence[Sentence]) -> Perplexity:
        """Perplexity of the sentences, each on its own, forward, backward and together."""
        return evaluate.perplexity_of(self.log_probs(sentences))

    def substitutes(self, sentence: str, *, k: int = 10) -> list[Substitute]:
        """The k likeliest words in place of the one in brackets: `"He sat on the [bank] ."`."""
        output_layer, vocabulary = self._language_model()
        tokens, position = marked_word(sentence, allow_blank=True)
        return evaluate.substitutes(self.bilm, output_layer, vocabulary, tokens, position, k)

    def _language_model(self) -> tuple[OutputLayer, Vocabulary]:
        if self.output_layer is None or self.vocabulary is None:
            raise ValueError(
                "this model has no output layer, so it gives vectors but no probabilities: load a folder with "
                f"{checkpoint.SOFTMAX_FILE} and {checkpoint.VOCABULARY_FILE}, or from_files(…, softmax=, vocabulary=)"
            )
        return self.output_layer, self.vocabulary

    # ---- how a list of sentences runs --------------------------------------------------------------------------------

    @property
    def config(self) -> Any:
        """The biLM's `BiLMConfig`."""
        return self.bilm.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.bilm.parameters()).device

    def digest(self) -> str:
        """The SHA-256 of all that makes the vectors: sizes, weights, and the words that are known by number."""
        known: list[Any] = [self.bilm.digest()]
        if self.vocabulary_is_input and self.vocabulary is not None:
            known.append(self.vocabulary.words)
        if self.lexicon is not None:
            known += [self.lexicon.characters, self.lexicon.words]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    @property
    def vocabulary_is_input(self) -> bool:
        """True for a word-level model, whose words are rows of a table."""
        return self.bilm.config.num_words is not None

    @torch.no_grad()
    def _run(
        self, sentences: Sequence[Sentence], batch_size: int | None, show_progress: bool
    ) -> Iterator[tuple[Batch, BiLMOutput]]:
        """Batches of sentences with their outputs; the next sentences are tokenized while the network runs."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if self.state == "carry":  # batches as they come: a row's place matters
            budget, batch_size = None, batch_size or CARRIED_ROWS
            bounds = [*range(0, len(sentences), batch_size), len(sentences)]
        else:
            budget = TOKENS_AT_ONCE.get(self.device.type, TOKENS_AT_ONCE["cpu"])
            # the first window is small: nothing runs until it is ready
            bounds = [0, *range(SENTENCES_AT_ONCE // 8, len(sentences), SENTENCES_AT_ONCE), len(sentences)]

        def prepare(window: tuple[int, int]) -> list[Batch]:
            tokens = as_tokens(sentences[slice(*window)], first=window[0])
            return plan(tokens, window[0], budget=budget, batch_size=batch_size)

        with ExitStack() as stack:
            advance = stack.enter_context(_progress(len(sentences))) if show_progress else None
            for batches in one_ahead(prepare, list(pairwise(bounds))):
                for batch in batches:
                    for part, output in self._run_batch(batch):
                        yield part, output
                        if advance is not None:
                            advance(len(part.positions))

    def _run_batch(self, batch: Batch) -> Iterator[tuple[Batch, BiLMOutput]]:
        """Run the batch, or where memory does not suffice its halves."""
        try:
            yield batch, self._carrying(len(batch.tokens), lambda state: self._contextualize(batch, state))
            return
        except RuntimeError as error:
            if not _is_out_of_memory(error) or len(batch.tokens) == 1 or self.state == "carry":
                raise
        middle = len(batch.tokens) // 2
        for part in (slice(None, middle), slice(middle, None)):
            yield from self._run_batch(Batch(batch.positions[part], batch.tokens[part]))

    def _contextualize(self, batch: Batch, state: BiLMState | None) -> BiLMOutput:
        lengths = np.array(batch.lengths)
        words = [BOS_TOKEN, EOS_TOKEN, *chain.from_iterable(batch.tokens)]

        def place(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            """Slots as rows of time (T, B): <S>, the sentence, </S>; what stands after that is not read."""
            grid = np.full((lengths.max() + 2, len(lengths)), slots[1])
            grid[0] = slots[0]
            starts = lengths.cumsum() - lengths
            times = np.arange(lengths.sum()) - starts.repeat(lengths) + 1
            grid[times, np.arange(len(lengths)).repeat(lengths)] = slots[2:]
            return grid

        if self.freeze:
            vectors = self._words.lookup(words, place, self._weights_key())  # (T, B, P)
        else:
            distinct = {word: number for number, word in enumerate(dict.fromkeys(words))}
            grid = place(np.fromiter(map(distinct.__getitem__, words), dtype=np.int64, count=len(words)))
            vectors = self._embed_words(list(distinct))[to_device(torch.from_numpy(grid), self.device)]
        return self.bilm.contextualize(vectors, to_device(torch.from_numpy(lengths + 2), self.device), state=state)

    def _carrying(self, num_rows: int, run: Callable[[BiLMState | None], BiLMOutput]) -> BiLMOutput:
        """Run with no state, or with the state that the rows ended in last time."""
        if self.state == "stateless":
            return run(None)
        with self._lock:
            fresh = self.bilm.initial_state(num_rows)
            if self._carried is not None:
                for new, old in zip(fresh, self._carried, strict=True):
                    known = min(num_rows, old.shape[2])
                    new[:, :, :known] = old[:, :, :known].to(new)
            output = run(fresh)
            kept = []
            for new, old in zip(output.state, self._carried or output.state, strict=True):
                # rows that this batch did not use keep their state
                kept.append(torch.cat([new.detach(), old[:, :, num_rows:].to(new)], dim=2))
            self._carried = BiLMState(*kept)
            return output

    def _selection(self, layers: Layers) -> Callable[[Tensor], Tensor]:
        last = self.config.num_layers
        if layers == "average":
            return lambda stacked: stacked.mean(dim=0)
        if layers == "all":
            return lambda stacked: stacked
        if layers == "top":
            return lambda stacked: stacked[last]
        if isinstance(layers, int) and not isinstance(layers, bool) and 0 <= layers <= last:
            return lambda stacked: stacked[layers]
        raise ValueError(f'layers must be "average", "top", "all" or a number from 0 to {last}, not {layers!r}')

    def _word_ids(self, words: Sequence[str]) -> Tensor:
        """Shifted ids of words: (N, 50) characters, (N,) rows of the word table, or (N, 51) of a lexicon."""
        if self.lexicon is not None:
            return torch.from_numpy(self.lexicon.ids(words, max_characters=self.config.max_characters)) + 1
        if self.vocabulary_is_input:
            assert self.vocabulary is not None
            return torch.from_numpy(self.vocabulary.ids(words)).long() + 1
        return torch.from_numpy(words_to_ids(words, max_characters=self.config.max_characters)).long() + 1

    def _embed_words(self, words: Sequence[str]) -> Tensor:
        return self.bilm.embed_words(self._word_ids(words))

    def _weights_key(self) -> tuple[Any, ...]:
        """Changes whenever the weights that make context-free vectors do."""
        encoder = self.bilm.char_encoder or self.bilm.lexicon_encoder
        parameters = [self.bilm.word_embedding] if encoder is None else encoder.parameters()
        return tuple((p.data_ptr(), p._version, p.dtype, p.device) for p in parameters if p is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Locks and caches stay here when a model is copied or sent to another process."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_words")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self._words = WordCache(self._embed_words, CACHED_WORDS)


def _find(word: str, tokens: list[str]) -> int:
    if word in tokens:
        return tokens.index(word)
    lowered = [token.lower() for token in tokens]
    if word.lower() in lowered:
        return lowered.index(word.lower())
    raise ValueError(f"the word {word!r} is not in the sentence; its tokens are {tokens}")


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import Progress  # a bar is rare, and rich slow to import

    with Progress() as bar:
        task = bar.add_task("sentences", total=total)
        yield lambda count: bar.advance(task, count)
