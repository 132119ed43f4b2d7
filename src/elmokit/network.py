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
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit import kernels
from elmokit.characters import BOS_TOKEN, EOS_TOKEN, NUM_CHARACTERS, Lexicon, lexicon_boundaries, words_to_ids
from elmokit.config import BiLMConfig, to_mapping
from elmokit.kernels import LSTMState, LSTMWeights, cpu

WORDS_AT_ONCE = {"cpu": 64, "cuda": 4096}  # the windows of so many words stay in a CPU's cache, or fill a GPU
GATES_AT_ONCE = {"cpu": 2**26, "cuda": 2**32}  # elements of the hoisted input product that one kernel call may hold


class CharacterEncoder(nn.Module):
    """Characters of a word -> its context-free vector: convolutions, max over positions, highways, projection."""

    def __init__(
        self,
        *,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: str,
        num_highways: int,
        projection_dim: int | None,
        num_characters: int = NUM_CHARACTERS,
    ) -> None:
        super().__init__()
        self.shifted_pad = num_characters  # the pad character is the last, and ids are shifted by one
        filters_dim = sum(channels for _, channels in filters)
        self.activation = activation
        self.char_embedding = nn.Parameter(torch.empty(num_characters, char_dim))
        self.convolutions = nn.ModuleList(nn.Conv1d(char_dim, channels, width) for width, channels in filters)
        self.highways = nn.ModuleList(Highway(filters_dim) for _ in range(num_highways))
        self.projection: nn.Module | None = None
        if projection_dim is not None:
            self.projection = init_linear(nn.Linear(filters_dim, projection_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The published initial values."""
        nn.init.uniform_(self.char_embedding, -1.0, 1.0)
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            assert convolution.bias is not None
            if self.activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05)
            elif not convolution.weight.is_meta:  # as in init_linear
                nn.init.normal_(convolution.weight, 0.0, 1.0 / math.sqrt(convolution.weight[0].numel()))
            nn.init.zeros_(convolution.bias)

    def forward(self, char_ids: Tensor) -> Tensor:
        """(N, C) shifted ids -> (N, P).  Ids may still be on the host: then nothing waits for a GPU."""
        device = self.char_embedding.device
        order = (char_ids != self.shifted_pad).sum(dim=1).argsort()  # words of one length together are trimmed the most
        at_once = WORDS_AT_ONCE.get(device.type, WORDS_AT_ONCE["cpu"])
        begins = range(0, max(1, len(order)), at_once)
        sorted_ids = char_ids[order]
        blocks = [self._maxima(to_device(self.trim(sorted_ids[begin : begin + at_once]), device)) for begin in begins]
        maxima = torch.cat(blocks)[to_device(order.argsort(), device)]  # (N, F)
        x = torch.relu(maxima) if self.activation == "relu" else torch.tanh(maxima)
        for highway in self.highways:
            x = highway(x)  # (N, F)
        if self.projection is not None:
            x = self.projection(x)  # (N, P)
        return x

    def _maxima(self, char_ids: Tensor) -> Tensor:
        """(N, C) -> (N, F): each filter's maximum over all positions, its windows the rows of one product.

        The maximum comes before the activation: both activations rise, so it is the same, and the work C times less.
        """
        table = functional.pad(self.char_embedding, (0, 0, 1, 0))  # id 0 reads as zeros
        x = functional.embedding(char_ids, table).flatten(1)  # (N, C d)
        maxima = []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            weight = convolution.weight.permute(2, 1, 0).flatten(0, 1)  # (w d, n)
            windows = x.unfold(1, len(weight), table.shape[1])  # (N, positions, w d)
            products = windows.reshape(-1, len(weight)) @ weight
            assert convolution.bias is not None
            maxima.append(products.view(*windows.shape[:2], weight.shape[1]).amax(dim=1) + convolution.bias)
        return torch.cat(maxima, dim=-1)

    def trim(self, char_ids: Tensor) -> Tensor:
        """Drop trailing columns that hold pads alone, and only so many that no maximum can change.

        Pads are not masked, so windows over pads count; but all windows of pads alone are equal, and one is enough.
        """
        columns = char_ids.shape[1]
        used = (char_ids != self.shifted_pad).any(dim=0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        widest = max(c.kernel_size[0] for c in self.convolutions if isinstance(c, nn.Conv1d))
        return char_ids[:, : min(columns, longest + widest)]

    def quantize(self) -> None:
        """Keep the matrices of highways and projection as int8 alone."""
        for highway in self.highways:
            assert isinstance(highway, Highway)
            highway.transform, highway.carry = map(Int8Linear, (highway.transform, highway.carry))
        if self.projection is not None:
            self.projection = Int8Linear(self.projection)


class Highway(nn.Module):
    """y = g * relu(x Wt + bt) + (1 - g) * x, with g = sigmoid(x Wc + bc)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform: nn.Module = init_linear(nn.Linear(dim, dim))
        self.carry: nn.Module = init_linear(nn.Linear(dim, dim), bias=-2.0)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) -> (N, F)."""
        return torch.lerp(x, torch.relu(self.transform(x)), torch.sigmoid(self.carry(x)))


class LexiconEncoder(nn.Module):
    """A word's row in a table beside what its characters make of it, both projected: ELMoForManyLangs' token vector.

    `filters` may be empty, `word_dim` 0; not both.
    """

    def __init__(
        self,
        *,
        num_characters: int,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: str,
        num_highways: int,
        num_words: int,
        word_dim: int,
        projection_dim: int,
    ) -> None:
        super().__init__()
        self.word_embedding: nn.Parameter | None = None
        if word_dim:
            self.word_embedding = nn.Parameter(torch.empty(num_words + Lexicon.NUM_SPECIAL_WORDS, word_dim))
            nn.init.uniform_(self.word_embedding, -1.0, 1.0)
        self.spelling: CharacterEncoder | None = None
        if filters:
            self.spelling = CharacterEncoder(
                char_dim=char_dim,
                filters=filters,
                activation=activation,
                num_highways=num_highways,
                projection_dim=None,
                num_characters=num_characters + Lexicon.NUM_MARKS,
            )
        width = word_dim + sum(channels for _, channels in filters)
        self.projection: nn.Module = init_linear(nn.Linear(width, projection_dim))

    def forward(self, ids: Tensor) -> Tensor:
        """(N, 1 + C) shifted ids -> (N, P)."""
        parts = []
        if self.word_embedding is not None:
            rows = to_device(ids[:, 0] - 1, self.word_embedding.device)
            parts.append(functional.embedding(rows, self.word_embedding))  # (N, word_dim)
        if self.spelling is not None:
            parts.append(self.spelling(ids[:, 1:]))  # (N, F)
        vectors: Tensor = self.projection(torch.cat(parts, dim=-1))
        return vectors

    def quantize(self) -> None:
        """Keep the matrices of all products as int8 alone."""
        if self.spelling is not None:
            self.spelling.quantize()
        self.projection = Int8Linear(self.projection)


class ProjectedLSTM(nn.Module):
    """One layer of LSTM with projection and clips, both directions, each with weights of its own."""

    def __init__(self, *, projection_dim: int, cell_dim: int, cell_clip: float | None, proj_clip: float | None) -> None:
        super().__init__()
        self.cell_clip, self.proj_clip = cell_clip, proj_clip
        self.int8: cpu.Int8Weights | None = None
        self.input_weight = nn.Parameter(torch.empty(2, projection_dim, 4 * cell_dim))
        self.recurrent_weight = nn.Parameter(torch.empty(2, projection_dim, 4 * cell_dim))
        self.bias = nn.Parameter(torch.zeros(2, 4 * cell_dim))
        self.projection = nn.Parameter(torch.empty(2, cell_dim, projection_dim))
        # Glorot over the joined [input; recurrent] matrix, as TensorFlow saw it
        bound = math.sqrt(6.0 / (2 * projection_dim + 4 * cell_dim))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.recurrent_weight, -bound, bound)
        bound = math.sqrt(6.0 / (cell_dim + projection_dim))
        nn.init.uniform_(self.projection, -bound, bound)

    def forward(self, inputs: Tensor, lengths: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """inputs (D, T, B, P), lengths (B,) -> outputs (D, T, B, P), state.

        A long document goes through in blocks of steps, the state carried, so that memory does not grow with the gates
        of all its steps; the backward direction takes its blocks from the end.
        """
        run: Callable[..., tuple[Tensor, LSTMState]] = cpu.lstm if self.int8 else kernels.choose(inputs).lstm
        weights = self.int8 or self._weights()
        steps, rows = inputs.shape[1:3]
        gates_per_step = max(1, rows * self.bias.numel())
        block = max(1, GATES_AT_ONCE.get(inputs.device.type, GATES_AT_ONCE["cpu"]) // gates_per_step)
        forward, backward = [], []
        for begin in range(0, max(steps, 1), block):
            end = min(begin + block, steps)
            if end - begin == steps:
                part, part_lengths = inputs, lengths.expand(2, -1)
            else:
                part = torch.stack([inputs[0, begin:end], inputs[1, steps - end : steps - begin]])
                starts = torch.tensor([[begin], [steps - end]], device=lengths.device)
                part_lengths = (lengths - starts).clamp(0, end - begin)  # (D, B)
            outputs, state = run(part, part_lengths, weights, state, cell_clip=self.cell_clip, proj_clip=self.proj_clip)
            if end - begin == steps:
                return outputs, state
            forward.append(outputs[0])
            backward.append(outputs[1])
        return torch.stack([torch.cat(forward), torch.cat(backward[::-1])]), state

    def _weights(self) -> LSTMWeights:
        return LSTMWeights(self.input_weight, self.recurrent_weight, self.bias, self.projection)

    def quantize(self) -> None:
        """Keep the matrices as int8 alone."""
        self.int8 = cpu.quantize(self._weights())
        for name in ("input_weight", "recurrent_weight", "projection"):
            setattr(self, name, nn.Parameter(torch.empty(0), requires_grad=False))


class Int8Linear(nn.Module):
    """A linear layer whose matrix is int8."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear)
        self.matrix = cpu.quantize_matrix(linear.weight.t())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) -> (N, out)."""
        return self.matrix.product(x, bias=self.bias)


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


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(w)_j * layer_j: the weights that a task learns (equation 1 of the paper)."""

    def __init__(self, num_layers: int, *, layer_norm: bool = False, eps: float = 1e-13) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm, self.eps = layer_norm, eps

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        """(L+1, B, T, 2P), (B, T) -> (B, T, 2P)."""
        if len(layers) != len(self.weights):
            raise ValueError(f"this mix weighs {len(self.weights)} layers, {len(layers)} came")
        if self.layer_norm:
            layers = self._normalize(layers, mask)
        return self.gamma * torch.einsum("l,lbtp->btp", self.weights.softmax(dim=0), layers)

    def _normalize(self, layers: Tensor, mask: Tensor) -> Tensor:
        """One mean and one variance for each layer, over all unmasked elements of the batch."""
        live = mask.unsqueeze(-1).to(layers.dtype)  # (B, T, 1)
        count = (live.sum() * layers.shape[-1]).clamp(min=1)
        over = (1, 2, 3)
        mean = (layers * live).sum(over, keepdim=True) / count
        variance = (((layers - mean) * live) ** 2).sum(over, keepdim=True) / count
        return (layers - mean) * torch.rsqrt(variance + self.eps)

    def l2(self) -> Tensor:
        """Sum of squares of the layer weights: the paper's regulariser, before its lambda."""
        return (self.weights**2).sum()


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


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; from the host to a GPU through pinned memory, since any other copy waits for all its work."""
    if device.type == "cuda" and not values.is_cuda:
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def init_linear(linear: nn.Linear, *, bias: float = 0.0) -> nn.Linear:
    """N(0, 1/sqrt(fan_in)) and a constant bias, as published."""
    if not linear.weight.is_meta:  # normal_ on a meta tensor imports half of torch's compiler, for nothing
        nn.init.normal_(linear.weight, 0.0, 1.0 / math.sqrt(linear.in_features))
        nn.init.constant_(linear.bias, bias)
    return linear
