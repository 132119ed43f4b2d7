"""ELMo: the one class that users hold, a facade over text, network, storage and inference.

Input: sentences, as strings or token lists, or ids inside a user's own network.  Output: vectors: NumPy arrays from
`embed` and `encode`, tensors with gradients from `forward`, numbers from the language model.

The file is long because it is the public surface: more than half of it is signatures and their documentation. What a
method does is in the rooms above.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmokit.arguments import (
    check_callable,
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_number,
    check_optional_integer,
    check_path,
    check_string,
    describe,
)
from elmokit.config import BiLMConfig
from elmokit.files import check_new_folder, sha256_of_json
from elmokit.inference.batches import Batch
from elmokit.inference.rows import arrays_of, tensors_of
from elmokit.inference.runner import Runner, Sentence, StateRule
from elmokit.inference.scores import NUM_READ, Perplexity, Scorer, Substitute, TokenLogProbs, perplexity_of
from elmokit.inference.sense_labels import SenseLabels
from elmokit.inference.senses import Occurrence, WordSenses, find_occurrences, group_senses
from elmokit.inference.vectors import Floats, check_vectors
from elmokit.inference.views import Layers, Reading, View, default_layers, view_of
from elmokit.network import BiLM, OutputLayer, ScalarMix, find_device, parameters_of, to_device
from elmokit.network.int8 import quantized
from elmokit.progress import OnProgress, format_count, reporting
from elmokit.storage import folder as model_folder
from elmokit.storage import names
from elmokit.storage.downloads import Progress, fetch
from elmokit.storage.folder import ModelFiles
from elmokit.storage.layouts import SOFTMAX_FILE, VOCABULARY_FILE, SoftmaxUrls
from elmokit.text import (
    TREEBANK,
    KnownScripts,
    Lexicon,
    Tokenizer,
    TokenizerName,
    Vocabulary,
    WordIds,
    WordWeights,
    as_list,
    as_tokens,
    check_tokens,
    find_phrase,
    make_word_ids,
    marked_word,
)

Array = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ELMoOutput:
    """What `ELMo.forward` gives a task."""

    mixes: list[Tensor]
    """One (B, T, 2P) for each mix."""
    mask: Tensor
    """(B, T) bool: True at tokens, False at padding."""
    layers: Tensor
    """(L+1, B, T, 2P)."""


class ELMo(nn.Module):
    """A biLM with its mixes; with an output layer and a vocabulary it is a language model too.

    Stateless unless told otherwise: a sentence's vectors do not depend on its batch, up to about 1e-6. With
    `state="carry"` each row of a batch starts where the same row of the batch before it ended, as the published code
    does; `reset_state` forgets.

    Args:
        bilm: The network. Usually `from_pretrained` or `from_files` makes it.
        freeze: Keep the biLM as it is; False trains it with the task, as `unfreeze` does later. The output layer, which
            `forward` does not use, is not trained in either case.
        num_mixes: Number of mixes of layers that the task learns.
        dropout: Dropout of each mix, in training.
        layer_norm: Normalize each layer before it is mixed.
        keep_boundaries: Leave the sentence boundaries in the output of `forward`.
        state: "stateless" or "carry".
        output_layer: Softmax of a language model.
        vocabulary: Words of the output layer; also what a word-level model reads.
        lexicon: Characters and words of a model that has a lexicon of its own.
        tokenizer: How strings are cut into tokens: "treebank", "spaces", "characters" or "han".
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
        tokenizer: TokenizerName = "treebank",
    ) -> None:
        super().__init__()
        check_instance("bilm", bilm, BiLM, "a BiLM; ELMo.from_pretrained loads a model by its name")
        _check_settings(freeze, num_mixes, dropout, layer_norm, keep_boundaries, state)
        check_integer("num_mixes", num_mixes, least=0)  # not None
        for name, value, kind in (
            ("output_layer", output_layer, OutputLayer),
            ("vocabulary", vocabulary, Vocabulary),
            ("lexicon", lexicon, Lexicon),
        ):
            if value is not None:
                check_instance(name, value, kind, f"a {kind.__name__} or None")
        self.bilm = bilm
        self.mixes = nn.ModuleList(
            ScalarMix(bilm.config.num_layers + 1, layer_norm=layer_norm) for _ in range(num_mixes)
        )
        self.dropout = nn.Dropout(check_number("dropout", dropout, least=0, most=1))
        self.output_layer = output_layer
        self.vocabulary = vocabulary
        self.lexicon = lexicon
        self.layer_norm, self.keep_boundaries = layer_norm, keep_boundaries
        self.freeze = freeze
        if output_layer is not None:
            output_layer.requires_grad_(False)
        self._softmax_urls: SoftmaxUrls | None = None
        # `load_language_model` may bring a vocabulary later; the vectors stay what they were
        self._words_by_frequency = lexicon.words if vocabulary is None and lexicon is not None else None
        if vocabulary is not None:
            self._words_by_frequency = vocabulary.words
        self._word_weights: WordWeights | None = None
        self._known_scripts: KnownScripts | None = None
        self._runner = Runner(make_word_ids(bilm.config, vocabulary, lexicon), Tokenizer(tokenizer), state)

    # ---- from and to files -------------------------------------------------------------------------------------------

    @classmethod
    @torch.inference_mode(False)  # a model that is loaded inside inference mode also works outside of it
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
        progress: Progress | None = None,
    ) -> ELMo:
        """Load a model by its name.

        Args:
            name: None or "en" is the English model in the package, "zh" the Chinese one; else a folder, an official
                name ("small", "medium", "original", "original-5.5b") or a Hugging Face id. A folder is one of ours, an
                official pair, a bilm-tf training folder (TensorFlow) or one of ELMoForManyLangs.
            freeze: Keep the biLM as it is; False trains it with the task.
            num_mixes: Number of mixes; None takes those of the folder, or one. Saved mixes are loaded if their number
                is the same.
            dropout: Dropout of each mix, in training.
            layer_norm: Normalize each layer before it is mixed; None takes the folder's setting.
            keep_boundaries: Leave the sentence boundaries in the output of `forward`.
            state: "stateless" or "carry".
            device: Where the model goes; None is the CPU.
            dtype: Type of the weights.
            quantize: "int8" rounds the weights for faster use on a CPU; such a model can be neither trained nor saved.
            progress: Called with (file, bytes so far, bytes in all or None) while files are downloaded.
        """
        if name is not None:
            check_path("name", name)
        _check_settings(freeze, num_mixes, dropout, layer_norm, keep_boundaries, state)
        _check_placing(device, dtype, quantize, freeze)
        check_callable("progress", progress)
        files = names.resolve(name, progress=progress).read()
        saved_mixes = len({n.split(".")[1] for n in files.weights if n.startswith("mixes.")})
        model = cls._from_model_files(
            files,
            freeze=freeze,
            num_mixes=(saved_mixes or 1) if num_mixes is None else num_mixes,
            dropout=dropout,
            layer_norm=files.layer_norm if layer_norm is None else layer_norm,
            keep_boundaries=keep_boundaries,
            state=state,
        )
        return model._placed(device, dtype, quantize)

    @classmethod
    @torch.inference_mode(False)
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
        progress: Progress | None = None,
    ) -> ELMo:
        """Load official files as they were downloaded. Each may be a path or a URL.

        Args:
            options: The options.json.
            weights: The weights.hdf5, or the `.index` file of a TensorFlow checkpoint, whose softmax comes with it.
            vocabulary: Names of the rows of `softmax` and `embeddings`.
            embeddings: A token-embedding file, which makes a word-level model.
            softmax: Weights of the output layer, which make a language model.
            freeze: As for `from_pretrained`, like all that follow.
            num_mixes: Number of mixes.
            dropout: Dropout of each mix.
            layer_norm: Normalize each layer before it is mixed.
            keep_boundaries: Leave the sentence boundaries in the output of `forward`.
            state: "stateless" or "carry".
            device: Where the model goes.
            dtype: Type of the weights.
            quantize: "int8" or None.
            progress: Called while files are downloaded.
        """
        from elmokit.storage.official import read_official_model  # HDF5 takes as long to import as all of elmokit

        _check_settings(freeze, num_mixes, dropout, layer_norm, keep_boundaries, state)
        _check_placing(device, dtype, quantize, freeze)
        check_callable("progress", progress)
        check_integer("num_mixes", num_mixes, least=0)  # not None
        sources = {"vocabulary": vocabulary, "embeddings": embeddings, "softmax": softmax}
        for argument, source in {"options": options, "weights": weights, **sources}.items():
            if source is not None or argument in ("options", "weights"):
                check_path(argument, source)
        paths = {
            f"{name}_path": fetch(source, progress=progress) for name, source in sources.items() if source is not None
        }
        options_path, weights_path = (fetch(source, progress=progress) for source in (options, weights))
        model = cls._from_model_files(
            read_official_model(options_path, weights_path, **paths),
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
        output_layer = None if files.softmax is None else _output_layer(files.softmax)
        model = cls(
            bilm,
            num_mixes=num_mixes,
            output_layer=output_layer,
            vocabulary=files.vocabulary,
            lexicon=files.lexicon,
            tokenizer=files.tokenizer,
            **settings,
        )
        mixes = {name.removeprefix("mixes."): t for name, t in files.weights.items() if name.startswith("mixes.")}
        if len(mixes) == 2 * num_mixes:
            model.mixes.load_state_dict(mixes)
        model._softmax_urls = files.softmax_urls
        return model.eval()

    def _placed(self, device: str | torch.device | None, dtype: torch.dtype, quantize: str | None) -> ELMo:
        self.to(device=None if device is None else find_device(device), dtype=dtype)
        if quantize is not None:
            self.bilm = quantized(self.bilm)
        return self

    def save_pretrained(self, folder: str | os.PathLike[str], *, dtype: model_folder.Storage | None = None) -> None:
        """Write a model folder: biLM, mixes, and where there are any the output layer and the vocabulary.

        Args:
            folder: Where to write.
            dtype: How the weights are stored, by default as the model holds them; "float16" takes half the space of
                float32 and "int8" a quarter. Any folder loads as float32.
        """
        check_new_folder(Path(check_path("folder", folder)))
        check_choice("dtype", dtype, (None, *get_args(model_folder.Storage)))
        self._refuse_int8()
        weights = {name: t.cpu() for name, t in self.bilm.state_dict().items()}
        weights |= {f"mixes.{name}": t.cpu() for name, t in self.mixes.state_dict().items()}
        softmax = None
        if self.output_layer is not None:
            softmax = {name: t.cpu() for name, t in self.output_layer.state_dict().items()}
        files = ModelFiles(
            self.config,
            weights,
            softmax,
            self.vocabulary,
            self.lexicon,
            layer_norm=self.layer_norm,
            tokenizer=self.tokenizer.name,
        )
        model_folder.save(files, folder, card=self._card(), storage=dtype)

    def export_hdf5(self, folder: str | os.PathLike[str]) -> None:
        """Write the official format: options.json, weights.hdf5; a language model also softmax.hdf5, vocabulary.txt."""
        from elmokit.storage.official import write_official, write_softmax

        self._refuse_int8()
        folder = Path(check_path("folder", folder))
        check_new_folder(folder)
        write_official(self.config, self.bilm.state_dict(), folder)
        if self.output_layer is not None:
            write_softmax(self.output_layer.state_dict(), folder / "softmax.hdf5")
        if self.vocabulary is not None:
            self.vocabulary.save(folder / VOCABULARY_FILE)

    def _refuse_int8(self) -> None:
        if self.bilm.is_int8:
            raise ValueError("this model's weights were rounded to int8: load it without quantize to write it")

    def export_token_embeddings(self, vocabulary: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
        """Write the context-free vector of each word of a vocabulary file, as bilm-tf's `dump_token_embeddings` did."""
        from elmokit.storage.official import write_token_embeddings

        check_path("path", path)
        words = Vocabulary.load(Path(check_path("vocabulary", vocabulary))).words
        with torch.no_grad():
            vectors = self._runner.embed_words(self.bilm, words)
        write_token_embeddings(vectors, path)

    def _card(self) -> str:
        config = self.config
        size = f"{format_count(config.num_layers, 'layer')} of {config.cell_dim} cells"
        if config.architecture == "transformer":
            size = format_count(config.num_layers, "transformer block")
        count = sum(p.numel() for p in self.bilm.parameters())
        return (
            f"# A biLM over {self.word_ids.describe()}\n\n"
            f"{size}, projection {config.projection_dim}; {count:,} parameters.\n\n"
            '```python\nfrom elmokit import ELMo\n\nmodel = ELMo.from_pretrained("this folder")\n```\n'
        )

    # ---- inside a user's own network ---------------------------------------------------------------------------------

    def forward(self, ids: Tensor) -> ELMoOutput:
        """Run a batch inside a network. Gradients reach the mixes, and the layers of the biLM that are not frozen.

        Args:
            ids: Ids from `to_ids` (or `batch_to_ids`, for models that read characters): (B, T, 50) characters, (B, T)
                words of a word-level model, or (B, T, 51) of a model with a lexicon.
        """
        if not isinstance(ids, Tensor) or ids.dim() < 2:
            raise ValueError(f"ids must be a tensor of to_ids or batch_to_ids, not {describe(ids)}")
        ids = ids.to(self.device)
        keep = self.keep_boundaries or self.layer_norm  # the published layer norm counts the boundary tokens
        carry = self.state == "carry"
        output = self._runner.carrying(
            self.bilm, len(ids), lambda state: self.bilm(ids, state=state, keep_boundaries=keep, with_state=carry)
        )
        mixes = self._mix(output.layers, output.mask)  # (B, T, 2P) each
        layers, mask = output.layers, output.mask
        if keep and not self.keep_boundaries:
            mask = mask[:, 2:]
            layers = layers[:, :, 1:-1] * mask.unsqueeze(-1)
            mixes = [mixed[:, 1:-1] * mask.unsqueeze(-1) for mixed in mixes]
        return ELMoOutput([self.dropout(mixed) for mixed in mixes], mask, layers)

    def mix(self, layers: Tensor, mask: Tensor) -> list[Tensor]:
        """Mix layers that were computed before, as `forward` does with its own.

        Args:
            layers: (L+1, B, T, 2P).
            mask: (B, T) bool, True at tokens.

        Returns:
            (B, T, 2P) for each mix, dropout applied.
        """
        shape = (self.num_layers, None, None, self.dim)
        _check_tensor("layers", layers, shape)
        _check_tensor("mask", mask, tuple(layers.shape[1:3]))
        return [self.dropout(mixed) for mixed in self._mix(layers, mask)]

    def _mix(self, layers: Tensor, mask: Tensor) -> list[Tensor]:
        return [mix(layers, mask) for mix in self.mixes]

    def mix_l2(self) -> Tensor:
        """Sum of squares of all mixes' layer weights: add `lambda` times this to a task's loss."""
        zero = torch.zeros((), device=self.device)
        return sum((mix.l2() for mix in self.mixes if isinstance(mix, ScalarMix)), zero)

    @property
    def freeze(self) -> bool:
        """Whether no weight of the biLM is trained. Set it to freeze or unfreeze the complete biLM."""
        return not any(parameter.requires_grad for parameter in parameters_of(self.bilm))

    @freeze.setter
    def freeze(self, freeze: bool) -> None:
        if freeze:
            self.bilm.requires_grad_(False)
        else:
            self.unfreeze()

    def unfreeze(self, from_layer: int = 0) -> ELMo:
        """Train the biLM from now on: all of it, or the upper layers.

        `freeze = True` freezes it again. The output layer is not trained by `forward` and stays as it is.

        Args:
            from_layer: The lowest layer that is trained; those below it are frozen. 0 is the context-free layer, which
                is the character encoder or the word table; 1 to L are the LSTM layers or transformer blocks; -1 is the
                top one.

        Returns:
            The model.

        Raises:
            ValueError: If there is no such layer, or the weights are int8.
        """
        if self.bilm.is_int8:
            raise ValueError("this model's weights were rounded to int8: load it without quantize to train it")
        is_number = isinstance(from_layer, int | np.integer) and not isinstance(from_layer, bool)
        if not is_number or not -self.num_layers <= from_layer < self.num_layers:
            raise ValueError(f"from_layer must be a number from 0 to {self.num_layers - 1}, or -1, not {from_layer!r}")
        first = int(from_layer) % self.num_layers
        self.bilm.requires_grad_(first == 0)
        for layer in self.bilm.layers[max(0, first - 1) :]:
            layer.requires_grad_(True)
        return self

    def to_ids(self, sentences: Sequence[Sentence]) -> Tensor:
        """Turn sentences into the ids that `forward` reads, one row per token.

        Tokens of a list are read as they are. For a model of Chinese characters, pass strings or lists of characters.

        Returns:
            (B, T, 50) characters, (B, T) words of a word-level model, or (B, T, 51) of a model with a lexicon: each
            word, then its characters. Shorter sentences end in zeros.
        """
        tokens = as_tokens(sentences, self.tokenizer)
        self._check_scripts(tokens)
        columns = self.word_ids.num_columns
        shape = (len(tokens), max(map(len, tokens), default=0), *(() if columns is None else (columns,)))
        ids = torch.zeros(shape, dtype=torch.long)
        for row, sentence in zip(ids, tokens, strict=True):
            row[: len(sentence)] = torch.from_numpy(self.word_ids.ids(sentence))
        return ids

    def embed_words(self, words: Sequence[str]) -> Tensor:
        """Context-free vectors (N, P) of N words, without gradients."""
        words = check_tokens(words, "words", "a list of words")
        with torch.no_grad():
            return self._runner.embed_words(self.bilm, words)

    def reset_state(self) -> None:
        """Forget the carried state: the next batch starts from zeros."""
        self._runner.reset_state()

    def forget_words(self) -> None:
        """Empty the cache of context-free word vectors (it empties itself when the weights change)."""
        self._runner.forget_words()

    # ---- vectors -----------------------------------------------------------------------------------------------------

    @overload
    def embed(
        self,
        sentences: Sequence[Sentence],
        *,
        layers: Layers = ...,
        batch_size: int | None = ...,
        show_progress: bool | OnProgress = ...,
        convert_to_tensor: Literal[False] = ...,
    ) -> list[Array]: ...

    @overload
    def embed(
        self,
        sentences: Sequence[Sentence],
        *,
        layers: Layers = ...,
        batch_size: int | None = ...,
        show_progress: bool | OnProgress = ...,
        convert_to_tensor: Literal[True],
    ) -> list[Tensor]: ...

    def embed(
        self,
        sentences: Sequence[Sentence],
        *,
        layers: Layers = "average",
        batch_size: int | None = None,
        show_progress: bool | OnProgress = False,
        convert_to_tensor: bool = False,
    ) -> list[Array] | list[Tensor]:
        """Vectors of every token of every sentence.

        A model that reads Chinese characters also takes lists of words: each word has one vector, the forward half of
        its last character and the backward half of its first.

        Args:
            sentences: Strings, which the model's tokenizer cuts, or token lists.
            layers: "average" is the even mix, "top" the last layer, "all" every layer, a number one layer (0 is the
                context-free one, -1 the last). "slot" is what the context expects at each word, "sense" the slot and
                the surroundings together, which tells best what a word means where it stands.
            batch_size: Largest number of sentences per batch. Batches are bounded in tokens in any case.
            show_progress: Show progress on standard error: a bar, or lines if there is no terminal. Or a function that
                is called after each batch with the numbers of sentences done and in all.
            convert_to_tensor: Return tensors on the model's device instead of NumPy arrays.

        Returns:
            For each sentence (T, 2P), or (L+1, T, 2P) with `layers="all"`.
        """
        view = view_of(layers, self.num_layers, caller="embed")
        convert_to_tensor = check_flag("convert_to_tensor", convert_to_tensor)
        batch_size, show_progress = _check_running(batch_size, show_progress)
        sentences = as_list(sentences)
        results: list[Any] = [None] * len(sentences)
        for batch, reading in self._read(sentences, view.needs_weights, batch_size, show_progress):
            with torch.no_grad(), self.bilm.without_openmp():
                rows = view.tokens(reading)  # (…, B, T, 2P)
                by_sentence = (tensors_of if convert_to_tensor else arrays_of)(rows, batch.num_words)
            for position, vectors in zip(batch.positions, by_sentence, strict=True):
                results[position] = vectors
        return results

    @overload
    def encode(
        self,
        sentences: Sentence | Sequence[Sentence],
        *,
        layers: Layers = ...,
        batch_size: int | None = ...,
        normalize: bool = ...,
        show_progress: bool | OnProgress = ...,
        convert_to_tensor: Literal[False] = ...,
    ) -> Array: ...

    @overload
    def encode(
        self,
        sentences: Sentence | Sequence[Sentence],
        *,
        layers: Layers = ...,
        batch_size: int | None = ...,
        normalize: bool = ...,
        show_progress: bool | OnProgress = ...,
        convert_to_tensor: Literal[True],
    ) -> Tensor: ...

    def encode(
        self,
        sentences: Sentence | Sequence[Sentence],
        *,
        layers: Layers = "average",
        batch_size: int | None = None,
        normalize: bool = False,
        show_progress: bool | OnProgress = False,
        convert_to_tensor: bool = False,
    ) -> Array | Tensor:
        """Sentence vectors: the mean of the token vectors. An empty sentence is zeros.

        Args:
            sentences: One string, or a list of strings or token lists.
            layers: As for `embed`, but not "all".
            batch_size: Largest number of sentences per batch.
            normalize: Scale the vectors to length one.
            show_progress: As for `embed`.
            convert_to_tensor: Return a tensor on the model's device instead of a NumPy array.

        Returns:
            (n, 2P), or (2P,) for one string.
        """
        view = view_of(layers, self.num_layers, single=True, caller="encode")
        normalize, convert_to_tensor = (
            check_flag("normalize", normalize),
            check_flag("convert_to_tensor", convert_to_tensor),
        )
        batch_size, show_progress = _check_running(batch_size, show_progress)
        texts = as_list([sentences] if isinstance(sentences, str) else sentences)
        dtype = torch.promote_types(next(self.bilm.parameters()).dtype, torch.float32)
        vectors = torch.zeros(len(texts), self.dim, device=self.device, dtype=dtype)
        for batch, reading in self._read(texts, view.needs_weights, batch_size, show_progress):
            counts = to_device(torch.tensor(batch.num_words).unsqueeze(1), self.device)  # (B, 1)
            with torch.no_grad(), self.bilm.without_openmp():
                tokens = view.tokens(reading)  # (B, T, 2P)
                is_token = torch.arange(tokens.shape[1], device=self.device) < counts  # (B, T)
                totals = torch.where(is_token.unsqueeze(-1), tokens, 0.0).sum(dim=1, dtype=dtype)
            vectors.index_copy_(0, torch.tensor(batch.positions, device=self.device), totals / counts.clamp(min=1))
        if normalize:
            vectors = nn.functional.normalize(vectors, dim=-1)
        if isinstance(sentences, str):
            vectors = vectors[0]
        return vectors if convert_to_tensor else vectors.cpu().numpy()

    def similarity(
        self, first: Sentence, second: Sentence, *, word: str | None = None, layers: Layers | None = None
    ) -> float:
        """Cosine of two sentences; with `word`, of that word in the two sentences.

        Args:
            first: A string or a token list.
            second: A string or a token list.
            word: A word that is in both sentences, or a phrase; its first occurrence counts.
            layers: As for `embed`, but not "all". By default "sense" for a word, "average" for sentences.
        """
        if layers is None:
            layers = default_layers(word)
        view = view_of(layers, self.num_layers, single=True, caller="similarity")
        for name, sentence in (("first", first), ("second", second)):
            if not isinstance(sentence, str):
                check_tokens(sentence, name, "a sentence, which is a string or a list of tokens")
        if word is None:
            a, b = self.encode([first, second], layers=layers)
        else:
            check_string("word", word)
            tokens = as_tokens([first, second], self.tokenizer)
            uses = [Occurrence(own, *find_phrase(word, own, self.tokenizer), n) for n, own in enumerate(tokens)]
            a, b = self._view_occurrences(view, uses)
        return float(np.dot(a, b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))

    def readings(
        self,
        sentences: Sequence[Sentence],
        *,
        batch_size: int | None = None,
        show_progress: bool | OnProgress = False,
    ) -> Iterator[tuple[int, Reading]]:
        """All layers of each sentence with its boundary tokens, from which several views can be taken.

        Args:
            sentences: Strings, which the model's tokenizer cuts, or token lists.
            batch_size: As for `embed`.
            show_progress: As for `embed`.

        Yields:
            The position of a sentence in `sentences`, and its reading, a batch of one. Longer sentences come first.
        """
        batch_size, show_progress = _check_running(batch_size, show_progress)
        for batch, reading in self._read(as_list(sentences), True, batch_size, show_progress):
            for row, position in enumerate(batch.positions):
                yield position, reading.sentence(row)

    # ---- the language model ------------------------------------------------------------------------------------------

    def log_probs(self, sentences: Sequence[Sentence]) -> list[TokenLogProbs]:
        """Log-probability of every token, from the words before it and from the words after it.

        Args:
            sentences: Strings, which the model's tokenizer cuts, or token lists.

        Returns:
            One `TokenLogProbs` per sentence. `unknown` marks its tokens outside the vocabulary, scored as <UNK>.
        """
        sentences = as_list(sentences)  # first: the output layer may have to be downloaded
        return self._scorer().log_probs(sentences)

    def perplexity(self, sentences: Sequence[Sentence]) -> Perplexity:
        """Perplexity of the sentences, each read from a zero state.

        Args:
            sentences: As for `log_probs`.

        Returns:
            The perplexity forward, backward and both; and, as `known`, both without the tokens outside the vocabulary.
        """
        return perplexity_of(self.log_probs(sentences))

    def substitutes(
        self,
        sentence: Sentence,
        *,
        position: int | None = None,
        k: int = 10,
        keep_word: bool = False,
        num_read: int = NUM_READ,
    ) -> list[Substitute]:
        """The k likeliest words for one place of a sentence.

        The words before the place and those after it choose candidates; the sentence with each of them orders these.

        Args:
            sentence: A string with the place in brackets, "He sat on the [bank] ."; or tokens, with `position`.
            position: The place among the tokens; only with tokens.
            k: Number of words.
            keep_word: Also return the word that is there, after the k words if it is not among them. A word outside the
                vocabulary has no probability and is not returned.
            num_read: Number of candidates. Each is read in the sentence, which takes most of the time; 0: the words
                are ordered by each side alone, many times as fast and less well.
        """
        k, num_read = check_integer("k", k), check_integer("num_read", num_read, least=0)
        if isinstance(sentence, str):
            if position is not None:
                raise ValueError(f"position={position} is for token lists; in a string mark the word: 'the [bank] .'")
            marked = marked_word(sentence, self.tokenizer, allow_blank=True)
            return self._scorer().substitutes(*marked, k, keep_word=keep_word, num_read=num_read)
        tokens = check_tokens(sentence, "sentence", "a string such as 'He sat on the [bank] .', or a list of tokens")
        if position is None:
            raise ValueError("a token list needs position=, the place of the word to replace")
        if not tokens:
            raise ValueError("sentence has no tokens: there is no word to replace")
        position = check_integer("position", position, least=0, most=len(tokens) - 1)
        return self._scorer().substitutes(tokens, position, k, keep_word=keep_word, num_read=num_read)

    def senses(
        self,
        word: str,
        sentences: Sequence[Sentence],
        *,
        num_senses: int | None = None,
        batch_size: int | None = None,
        show_progress: bool | OnProgress = False,
    ) -> WordSenses:
        """Every occurrence of a word in sentences, grouped into senses.

        Args:
            word: A word or a phrase, in upper or lower case.
            sentences: Strings, which the model's tokenizer cuts, or token lists. Only those with the word are run.
            num_senses: Number of senses; None finds it from the data.
            batch_size: As for `embed`.
            show_progress: As for `embed`.

        Returns:
            The senses, the most frequent first, each with its share, its typical sentences and words that fit in its
            place.
        """
        check_string("word", word)
        num_senses = check_optional_integer("num_senses", num_senses)
        batch_size, show_progress = _check_running(batch_size, show_progress)
        if self.state == "carry":  # only sentences with the word are run
            raise ValueError('this model carries its state from batch to batch: load it with state="stateless"')
        occurrences = list(find_occurrences(word, as_tokens(as_list(sentences), self.tokenizer), self.tokenizer))
        view = view_of("sense", self.num_layers)
        vectors = self._view_occurrences(view, occurrences, batch_size=batch_size, show_progress=show_progress)
        return self.group_senses(word, occurrences, vectors, num_senses=num_senses)

    def group_senses(
        self, word: str, occurrences: Sequence[Occurrence], vectors: Floats, *, num_senses: int | None = None
    ) -> WordSenses:
        """Group occurrences of a word whose vectors are known, as `senses` does.

        Args:
            word: The word.
            occurrences: Its N occurrences.
            vectors: (N, 2P): their vectors, as from `layers="sense"`.
            num_senses: Number of senses; None finds it from the data.
        """
        check_string("word", word)
        num_senses = check_optional_integer("num_senses", num_senses)
        uses = as_list(occurrences, "occurrences")
        for number, one in enumerate(uses):
            check_instance(f"occurrences[{number}]", one, Occurrence, "an Occurrence")
        vectors = check_vectors("vectors", vectors, self.dim)
        if len(uses) != len(vectors):
            counts = f"{format_count(len(uses), 'occurrence')} came with {format_count(len(vectors), 'vector')}"
            raise ValueError(f"{counts}: pass one vector for each")
        label = None
        if self.output_layer is not None and self.vocabulary is not None:
            label = SenseLabels(self._scorer(), self.tokenizer, self.word_weights, self._slots)
        return group_senses(word, uses, vectors, num_senses=num_senses, label=label)

    def _slots(self, occurrences: Sequence[Occurrence]) -> Tensor:
        """(N, 2P): the slot of each occurrence, on the device of the model."""
        vectors = self._view_occurrences(view_of("slot", self.num_layers), occurrences)
        return torch.from_numpy(vectors).to(next(self.bilm.parameters()))

    def _view_occurrences(
        self,
        view: View,
        occurrences: Sequence[Occurrence],
        *,
        batch_size: int | None = None,
        show_progress: bool | OnProgress = False,
    ) -> Array:
        """(N, 2P): a vector of each occurrence. Sentences with several of them are run once."""
        by_sentence: dict[int, list[int]] = {}
        for number, one in enumerate(occurrences):
            by_sentence.setdefault(one.sentence, []).append(number)
        groups = list(by_sentence.values())
        sentences = [occurrences[own[0]].tokens for own in groups]
        vectors = np.zeros((len(occurrences), self.dim), np.float32)
        for position, reading in self.readings(sentences, batch_size=batch_size, show_progress=show_progress):
            own = groups[position]
            start, end = torch.tensor([(occurrences[place].start, occurrences[place].end) for place in own]).unbind(1)
            vectors[own] = view.spans(reading, start, end)[0].cpu().numpy()
        return vectors

    @property
    def is_language_model(self) -> bool:
        """Whether the model has an output layer with its words, or can download them, and so gives probabilities."""
        return self._softmax_urls is not None or (self.output_layer is not None and self.vocabulary is not None)

    @torch.inference_mode(False)
    def load_language_model(self, *, progress: Progress | None = None) -> None:
        """Load the output layer and the vocabulary of "original" or "original-5.5b", which only probabilities need.

        The methods of the language model call it. The files, more than 1 GB, are downloaded once. A model that has its
        output layer, or has none, stays as it is.

        Args:
            progress: Called with (file, bytes so far, bytes in all or None) while files are downloaded.

        Raises:
            ConnectionError: If a file cannot be downloaded. Vectors work without it.
            ValueError: If a file is damaged.
        """
        check_callable("progress", progress)
        if self._softmax_urls is None or self.output_layer is not None:
            return
        softmax, vocabulary = self._softmax_urls.read(self.config.projection_dim, progress=progress)
        weight = next(parameter for parameter in self.bilm.parameters() if parameter.is_floating_point())
        self.output_layer = _output_layer(softmax).requires_grad_(False).to(weight.device, weight.dtype)
        self.vocabulary = vocabulary

    def _scorer(self) -> Scorer:
        self.load_language_model()
        if self.output_layer is None or self.vocabulary is None:
            raise ValueError(
                "this model has no output layer, so it gives vectors but no probabilities: load a folder with "
                f"{SOFTMAX_FILE} and {VOCABULARY_FILE}, or from_files(…, softmax=, vocabulary=)"
            )
        return Scorer(self._runner, self.bilm, self.output_layer, self.vocabulary, use_cache=self.freeze)

    # ---- what it is --------------------------------------------------------------------------------------------------

    @property
    def config(self) -> BiLMConfig:
        """Sizes and variants of the biLM."""
        return self.bilm.config

    @property
    def dim(self) -> int:
        """Width of a vector: 2P, forward and backward."""
        return 2 * self.bilm.config.projection_dim

    @property
    def num_layers(self) -> int:
        """Number of layers that a vector can be taken from, the context-free layer 0 included: L+1."""
        return self.bilm.config.num_layers + 1

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.bilm.parameters()).device

    @property
    def tokenizer(self) -> Tokenizer:
        """How strings are cut into tokens."""
        return self._runner.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        check_instance("tokenizer", tokenizer, Tokenizer, 'a Tokenizer, such as elmokit.text.Tokenizer("spaces")')
        self._runner.tokenizer = tokenizer

    @property
    def word_ids(self) -> WordIds:
        """How words become the ids that the biLM reads."""
        return self._runner.word_ids

    @property
    def state(self) -> StateRule:
        """ "stateless", or "carry": each row of a batch starts where the same row of the batch before it ended."""
        return self._runner.state

    @state.setter
    def state(self, rule: StateRule) -> None:
        self._runner.state = rule

    @property
    def reads_words(self) -> bool:
        """True for a word-level model, whose words are rows of a table: an unknown word is <UNK> to it."""
        return self.bilm.config.num_words is not None

    @property
    def word_weights(self) -> WordWeights:
        """How much each word counts in the surroundings of the others, which the view "sense" reads.

        By default from the order of the words in the model's vocabulary or lexicon, which is by frequency; a model
        without one has the weights of English. Set it to the `elmokit.text.WordWeights` of other words or counts; it is
        not saved with the model.
        """
        if self._word_weights is None:
            self._word_weights = WordWeights(self._words_by_frequency or names.english_vocabulary().words)
        return self._word_weights

    @word_weights.setter
    def word_weights(self, weights: WordWeights) -> None:
        check_instance("word_weights", weights, WordWeights, "an elmokit.text.WordWeights of words or counts")
        self._word_weights = weights

    def digest(self) -> str:
        """The SHA-256 of all that makes the vectors: sizes, weights, words that are known by number, the tokenizer."""
        tokenizer = [] if self.tokenizer == TREEBANK else [self.tokenizer.name]  # models of 0.1 keep their digests
        return sha256_of_json([self.bilm.digest(), *self.word_ids.known, *tokenizer])

    def _read(
        self, sentences: Sequence[Sentence], weighted: bool, batch_size: int | None, show_progress: bool | OnProgress
    ) -> Iterator[tuple[Batch, Reading]]:
        """Batches of sentences and what the biLM computed for them; with the weights of their words if `weighted`."""
        num_done, total = 0, len(sentences)
        with reporting(show_progress, "sentences", total) as progress:
            # a biLM that is being trained changes at every step, and what the cache holds with it
            for batch, output in self._runner.run(self.bilm, sentences, batch_size=batch_size, use_cache=self.freeze):
                self._check_scripts(batch.tokens)
                weights = None
                if weighted:
                    by_token = self.word_weights.batch(batch.tokens, max(batch.lengths, default=0))
                    weights = to_device(torch.from_numpy(by_token), self.device)
                starts = None if batch.words is None else tuple(words.starts for words in batch.words)
                yield batch, Reading(output.layers, tuple(batch.lengths), weights, starts)
                num_done += len(batch.positions)
                progress(num_done, total)

    def _check_scripts(self, sentences: list[list[str]]) -> None:
        """Warn, once for each script, of text in a script that the words of the model's vocabulary do not have."""
        if self._words_by_frequency is None or all(word.isascii() for tokens in sentences for word in tokens):
            return
        if self._known_scripts is None:
            self._known_scripts = KnownScripts(self._words_by_frequency)
        if script := self._known_scripts.unseen(sentences):
            known = ", ".join(sorted(self._known_scripts.scripts)) or "none"
            hint = '; for Chinese, load the model "zh"' if script == "Han" and names.is_embedded("zh") else ""
            logger.warning(
                "text in %s letters: this model was trained on other scripts (%s) and its vectors of such text mean "
                "little%s",
                script,
                known,
                hint,
            )


def _output_layer(softmax: Mapping[str, Tensor]) -> OutputLayer:
    """An output layer with the weights of a file."""
    # not on the meta device, where randn imports half of torch's compiler; the caller's draws stay as they are
    with torch.random.fork_rng(devices=[]):
        output_layer = OutputLayer(1, 1)
    output_layer.weight, output_layer.bias = (nn.Parameter(softmax[name].float()) for name in ("weight", "bias"))
    return output_layer


# ---- checks of arguments ---------------------------------------------------------------------------------------------


def _check_settings(
    freeze: object, num_mixes: object, dropout: object, layer_norm: object, keep_boundaries: object, state: object
) -> None:
    """Check the settings of a model before its files are read; None is left to the files."""
    check_flag("freeze", freeze)
    check_optional_integer("num_mixes", num_mixes, least=0)
    check_number("dropout", dropout, least=0, most=1)
    if layer_norm is not None:
        check_flag("layer_norm", layer_norm)
    check_flag("keep_boundaries", keep_boundaries)
    check_choice("state", state, get_args(StateRule))


def _check_placing(device: str | torch.device | None, dtype: object, quantize: object, freeze: bool) -> None:
    """Check where and how a model is to be loaded before its files are read."""
    if device is not None:
        if not isinstance(device, torch.device | str | int) or isinstance(device, bool):
            raise ValueError(f'device must be a name such as "cpu" or "cuda", or None, not {describe(device)}')
        find_device(device)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f"dtype must be a type of torch for floating-point numbers, such as torch.float16, not {dtype!r}"
        )
    check_choice("quantize", quantize, ("int8", None))
    if quantize is not None and (dtype != torch.float32 or not freeze):
        raise ValueError(
            f'quantize is "int8" or None, for a frozen model in float32; here quantize={quantize!r}, dtype={dtype}, '
            f"freeze={freeze}"
        )


def _check_running(batch_size: object, show_progress: bool | OnProgress) -> tuple[int | None, bool | OnProgress]:
    """Check how sentences are to be run, before they are read."""
    if not callable(show_progress):
        show_progress = check_flag("show_progress", show_progress)
    return check_optional_integer("batch_size", batch_size), show_progress


def _check_tensor(name: str, value: object, shape: tuple[int | None, ...]) -> None:
    """Check a tensor and its shape; None is any size."""
    wanted = f"a tensor of shape ({', '.join('any' if size is None else str(size) for size in shape)})"
    check_instance(name, value, Tensor, wanted)
    assert isinstance(value, Tensor)
    if value.dim() != len(shape) or any(
        want not in (None, size) for want, size in zip(shape, value.shape, strict=True)
    ):
        raise ValueError(f"{name} must be {wanted}, not {tuple(value.shape)}")
