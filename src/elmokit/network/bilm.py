"""The biLM of Peters et al. (2018), section 3, in the order that data flows.

Enters: character ids (B, T, C), word ids (B, T) of a word-level model, or both (B, T, 1 + C) of a model with a lexicon;
0 is padding, every other id is shifted by 1.
Leaves: every layer's vectors (L+1, B, T, 2P), their mask, and the state.

Legend of shapes: B sentences, T tokens, N distinct words, C characters of a word (cells inside the LSTM), F filters,
P projection, L LSTM layers, D = 2 directions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit import kernels
from elmokit.config import BiLMConfig
from elmokit.kernels import LSTMState
from elmokit.network.devices import to_device
from elmokit.network.encoder import CharacterEncoder, LexiconEncoder
from elmokit.network.lstm import ProjectedLSTM
from elmokit.settings import to_mapping
from elmokit.text import BOS_TOKEN, EOS_TOKEN, NUM_CHARACTERS, Lexicon, lexicon_boundaries, words_to_ids


class BiLMState(NamedTuple):
    """What the LSTMs remember of each row after its last token."""

    hidden: Tensor  # (L, D, B, P)
    cell: Tensor  # (L, D, B, C)


@dataclass(frozen=True)
class BiLMOutput:
    """One run of the biLM."""

    layers: Tensor
    """(L+1, B, T, 2P): layer 0 is the token vector twice, layer l the l-th LSTM's [forward; backward]."""
    mask: Tensor
    """(B, T) bool: True where a token stands."""
    state: BiLMState


class BiLM(nn.Module):
    """A bidirectional language model without its softmax.  A call is pure: state goes in and comes out."""

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config, self.is_int8, self._digest_before_int8 = config, False, ""
        self.char_encoder: CharacterEncoder | None = None
        self.lexicon_encoder: LexiconEncoder | None = None
        self.word_embedding: nn.Parameter | None = None
        if config.num_lexicon_characters is not None:
            self.lexicon_encoder = LexiconEncoder(
                num_characters=config.num_lexicon_characters,
                char_dim=config.char_dim,
                filters=config.filters,
                activation=config.activation,
                num_highways=config.num_highways,
                num_words=config.num_lexicon_words,
                word_dim=config.word_dim,
                projection_dim=config.projection_dim,
            )
        elif config.num_words is None:
            self.char_encoder = CharacterEncoder(
                char_dim=config.char_dim,
                filters=config.filters,
                activation=config.activation,
                num_highways=config.num_highways,
                projection_dim=config.projection_dim if config.char_projection else None,
            )
        else:
            self.word_embedding = nn.Parameter(torch.empty(config.num_words, config.projection_dim))
            nn.init.uniform_(self.word_embedding, -1.0, 1.0)
        self.layers = nn.ModuleList(
            ProjectedLSTM(
                projection_dim=config.projection_dim,
                cell_dim=config.cell_dim,
                cell_clip=config.cell_clip,
                proj_clip=config.proj_clip,
            )
            for _ in range(config.num_layers)
        )
        self.boundary_ids: Tensor
        self.register_buffer("boundary_ids", self._boundary_ids(), persistent=False)

    def _boundary_ids(self) -> Tensor:
        """Shifted ids of the two boundary tokens: (2, C) characters, (2,) words, or (2, 1 + C) of a lexicon."""
        if self.config.num_words is not None:
            return torch.tensor([self.config.bos_id + 1, self.config.eos_id + 1])
        if (known := self.config.num_lexicon_characters) is not None:
            return torch.from_numpy(lexicon_boundaries(known, max_characters=self.config.max_characters)) + 1
        ids = words_to_ids([BOS_TOKEN, EOS_TOKEN], max_characters=self.config.max_characters)
        return torch.from_numpy(ids).long() + 1

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take tensors as parameters, without a copy; also on a model that was made on the meta device."""
        self.load_state_dict(dict(weights), assign=True)
        self.boundary_ids = self._boundary_ids().to(next(self.parameters()).device)

    def digest(self) -> str:
        """The SHA-256 of the sizes and of the weights as they are, wherever they are."""
        if self.is_int8:
            return hashlib.sha256(f"{self._digest_before_int8} as int8".encode()).hexdigest()
        digest = hashlib.sha256(json.dumps(to_mapping(self.config), sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def quantize(self) -> None:
        """Round the weights of all products to int8, for inference on a CPU; characters and biases stay as they are.

        The model is smaller and faster then, and can no longer be trained or saved.
        """
        if next(self.parameters()).device.type != "cpu":
            raise ValueError("int8 weights run on a CPU: leave quantize unset, or use device='cpu'")
        self._digest_before_int8 = self.digest()  # what is rounded is packed, and can be read no more
        for layer in self.layers:
            assert isinstance(layer, ProjectedLSTM)
            layer.quantize()
        for encoder in (self.char_encoder, self.lexicon_encoder):
            if encoder is not None:
                encoder.quantize()
        self.requires_grad_(False)
        self.is_int8 = True

    def forward(self, ids: Tensor, *, state: BiLMState | None = None, keep_boundaries: bool = False) -> BiLMOutput:
        """Shifted character ids (B, T, C), word ids (B, T), or ids of a lexicon (B, T, 1 + C) -> all layers.

        Boundary tokens are added to each sentence here, and taken off again unless `keep_boundaries`.
        """
        mask = self._mask(ids)
        num_rows, num_steps = mask.shape
        lengths = mask.sum(dim=1)  # (B,)
        words, inverse = distinct_rows(ids[mask])
        vectors = self.embed_words(torch.cat([self.boundary_ids, words]))  # (2 + N, P)
        # vector 0 is <S>, 1 is </S>; which one stands at padding does not matter
        index = torch.zeros((num_rows, num_steps + 2), dtype=torch.long, device=ids.device)
        index[:, 1:-1][mask] = inverse + 2
        index.scatter_(1, lengths.unsqueeze(1) + 1, 1)
        return self.contextualize(vectors[index.t()], lengths + 2, state=state, keep_boundaries=keep_boundaries)

    def embed_words(self, ids: Tensor) -> Tensor:
        """Context-free vectors of words: shifted ids (N, C), (N,) or (N, 1 + C), on any device -> (N, P)."""
        kernels.check_dtype(next(self.parameters()))
        encoder = self.char_encoder if self.lexicon_encoder is None else self.lexicon_encoder
        if encoder is not None:
            vectors: Tensor = encoder(ids)
            return vectors
        assert self.word_embedding is not None
        return functional.embedding(to_device(ids, self.word_embedding.device) - 1, self.word_embedding)

    def contextualize(
        self, tokens: Tensor, lengths: Tensor, *, state: BiLMState | None = None, keep_boundaries: bool = False
    ) -> BiLMOutput:
        """Run the LSTMs over token vectors (T, B, P), time first, each row with its boundary tokens.

        `lengths` (B,) counts a row's tokens, boundaries included; what stands after them is not read.
        """
        num_steps, num_rows = tokens.shape[:2]
        mask = torch.arange(num_steps, device=tokens.device).unsqueeze(1) < lengths  # (T, B)
        x = torch.where(mask.unsqueeze(-1), tokens, 0.0)  # (T, B, P)
        state = self.initial_state(num_rows) if state is None else self._check_state(state, num_rows)
        outputs = x.expand(2, *x.shape)  # (D, T, B, P)
        layers, last = [outputs], []
        for number, layer in enumerate(self.layers):
            inputs = outputs
            outputs, layer_state = layer(inputs, lengths, LSTMState(state.hidden[number], state.cell[number]))
            if number > 0 and self.config.skip_connections:
                outputs = outputs + inputs
            layers.append(outputs)
            last.append(layer_state)
        if not keep_boundaries:
            mask, layers = mask[2:], [outputs[:, 1:-1] for outputs in layers]
        # (L+1, D, T, B, P) -> (L+1, T, B, 2P)
        stacked = torch.stack([torch.cat([outputs[0], outputs[1]], dim=-1) for outputs in layers])
        if not keep_boundaries and len(mask):
            # a sentence is two tokens shorter now: where its </S> still stands, there is padding
            rows = torch.arange(num_rows, device=lengths.device)
            ends = (lengths - 2).clamp(max=len(mask) - 1)
            is_gone = (lengths == num_steps).unsqueeze(-1)  # the longest sentences lost theirs with the last step
            stacked[:, ends, rows] = torch.where(is_gone, stacked[:, ends, rows], 0.0)
        return BiLMOutput(
            stacked.transpose(1, 2),  # (L+1, B, T, 2P)
            mask.t(),
            BiLMState(torch.stack([s.hidden for s in last]), torch.stack([s.cell for s in last])),
        )

    def initial_state(self, num_rows: int) -> BiLMState:
        """The state before the first token: zeros."""
        config, like = self.config, self.layers[0].bias
        assert isinstance(like, Tensor)
        shape = (config.num_layers, 2, num_rows)
        return BiLMState(like.new_zeros(*shape, config.projection_dim), like.new_zeros(*shape, config.cell_dim))

    def _check_state(self, state: BiLMState, num_rows: int) -> BiLMState:
        expected = self.initial_state(num_rows)
        if not isinstance(state, BiLMState):
            raise ValueError(f"state must be a BiLMState, as a run's output holds it, or None, not {state!r}")
        for name, given, wanted in zip(BiLMState._fields, state, expected, strict=True):
            if given.shape != wanted.shape:
                raise ValueError(
                    f"state.{name} is {tuple(given.shape)}, this batch needs {tuple(wanted.shape)} "
                    "(layers, directions, rows, width): pass the state of a batch with as many rows, or None"
                )
            if (given.dtype, given.device) != (wanted.dtype, wanted.device):
                raise ValueError(
                    f"state.{name} is {given.dtype} on {given.device}, the model {wanted.dtype} on {wanted.device}"
                )
        return state

    def _mask(self, ids: Tensor) -> Tensor:
        """(B, T) bool from shifted ids; ids of a wrong shape, type or range are a ValueError."""
        if not isinstance(ids, Tensor):
            raise ValueError(f"ids are a {type(ids).__name__}, not a tensor: make them with batch_to_ids")
        columns, known = self.config.id_columns, self.config.num_lexicon_characters
        maker = "batch_to_ids" if known is None else "ELMo.to_ids: this model has a lexicon of its own"
        wanted = "(B, T)" if columns is None else f"(B, T, {columns})"
        if ids.ndim != (2 if columns is None else 3) or (columns is not None and ids.shape[2] != columns):
            raise ValueError(f"ids are {tuple(ids.shape)}, this model reads {wanted}: make them with {maker}")
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids are {ids.dtype}, not torch.int64: make them with {maker}")
        if known is None:
            ranges = [(ids, NUM_CHARACTERS if self.config.num_words is None else self.config.num_words)]
        else:
            largest_word = self.config.num_lexicon_words + Lexicon.NUM_SPECIAL_WORDS
            ranges = [(ids[:, :, 0], largest_word), (ids[:, :, 1:], known + Lexicon.NUM_MARKS)]
        for part, largest in ranges:
            if part.numel() and not (int(part.min()) >= 0 and int(part.max()) <= largest):
                lowest, highest = int(part.min()), int(part.max())
                raise ValueError(f"ids run from {lowest} to {highest}, this model reads 0 to {largest}")
        mask = ids > 0 if columns is None else (ids > 0).any(dim=-1)
        if mask.shape[1] > 1 and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise ValueError("ids have padding before a token: padding belongs at the end of a row")
        return mask


def distinct_rows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of `ids` (N, C) or (N,) and, for each row, its place among them.

    Rows are compared by a 64-bit hash, then checked: a collision falls back to comparing whole rows.
    """
    if not len(ids):
        return ids, torch.zeros(0, dtype=torch.long, device=ids.device)
    if ids.ndim == 1:
        distinct, inverse = torch.unique(ids, return_inverse=True)
        return distinct, inverse
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (ids.shape[1],), generator=generator, dtype=torch.int64) * 2 + 1
    hashes = (ids.long() * factors.to(ids.device)).sum(dim=1)  # wraps around, as a hash may
    keys, inverse = torch.unique(hashes, return_inverse=True)
    first = torch.full((len(keys),), len(ids), dtype=torch.long, device=ids.device)
    first.scatter_reduce_(0, inverse, torch.arange(len(ids), device=ids.device), "amin")
    distinct = ids[first]
    if not torch.equal(distinct[inverse], ids):
        distinct, inverse = torch.unique(ids, dim=0, return_inverse=True)
    return distinct, inverse
