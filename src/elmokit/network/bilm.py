"""The biLM of Peters et al. (2018), section 3, in the order of the forward pass.

Input: shifted ids of tokens, (B, T, C) characters, (B, T) words of a word-level model, or (B, T, 1 + C) of a model with
a lexicon (see `text/ids.py`); 0 is padding.  Output: every layer's vectors (L+1, B, T, 2P), their mask, and the state.
Inference and training share one pass over the layers, `run_layers`.

Shapes: B sentences, T tokens, N distinct words, C characters per word (cells inside the LSTM), P projection,
L LSTM layers or transformer blocks, D = 2 directions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit import kernels
from elmokit.arguments import check_instance
from elmokit.config import BiLMConfig
from elmokit.kernels import AttentionSizes, LSTMState, cpu
from elmokit.kernels.blocks import norm
from elmokit.network.devices import to_device
from elmokit.network.encoder import CharacterEncoder, LexiconEncoder
from elmokit.network.ids import check_words, token_mask
from elmokit.network.lstm import ProjectedLSTM
from elmokit.network.rows import distinct_rows, take_rows
from elmokit.network.transformer import AttentionState, Block, TransformerBlock, run_blocks
from elmokit.settings import to_mapping
from elmokit.text import word_ids_of_sizes

NO_TRACING = (
    "torch.export and torch.jit cannot record a biLM, because its loops depend on the sentences: "
    "use export_onnx of elmokit.integrations.onnx, or torch.compile"
)


class BiLMState(NamedTuple):
    """The LSTM state of each row after its last token."""

    hidden: Tensor  # (L, D, B, P)
    cell: Tensor  # (L, D, B, C)


State = BiLMState | AttentionState
"""The state of each row after its last token, of either architecture. The third dimension of its tensors are rows."""


@dataclass(frozen=True)
class BiLMOutput:
    """The output of a biLM."""

    layers: Tensor
    """(L+1, B, T, 2P): layer 0 is the token vector twice, layer l is [forward; backward] of the l-th layer or block."""
    mask: Tensor
    """(B, T) bool: True at tokens, False at padding."""
    state: State | None
    """The state after the last token of each row: a `BiLMState` of an LSTM. None if it was not asked for."""


class BiLM(nn.Module):
    """A bidirectional language model without its output layer.  State is an argument and a result, not kept.

    Args:
        config: Sizes and variants.
    """

    is_int8 = False  # True for the result of `int8.quantized`

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        check_instance("config", config, BiLMConfig, "the sizes of the biLM, a BiLMConfig")
        self.config = config
        self.word_ids = word_ids_of_sizes(config)
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
                max_characters=config.max_characters,
            )
        elif config.num_words is None:
            self.char_encoder = CharacterEncoder(
                char_dim=config.char_dim,
                filters=config.filters,
                activation=config.activation,
                num_highways=config.num_highways,
                projection_dim=config.projection_dim if config.char_projection else None,
                max_characters=config.max_characters,
            )
        else:
            self.word_embedding = nn.Parameter(torch.empty(config.num_words, config.projection_dim))
            nn.init.uniform_(self.word_embedding, -1.0, 1.0)
        self.layers = nn.ModuleList(self._layer() for _ in range(config.num_layers))
        self.boundary_ids: Tensor
        self.register_buffer("boundary_ids", torch.from_numpy(self.word_ids.boundaries), persistent=False)

    def _layer(self) -> nn.Module:
        """One layer of the architecture."""
        config = self.config
        if config.architecture == "transformer":
            return TransformerBlock(
                projection_dim=config.projection_dim,
                feedforward_dim=config.feedforward_dim,
                num_layers=config.num_layers,
            )
        return ProjectedLSTM(
            projection_dim=config.projection_dim,
            cell_dim=config.cell_dim,
            cell_clip=config.cell_clip,
            proj_clip=config.proj_clip,
        )

    def __prepare_scriptable__(self) -> BiLM:
        """Called by torch.jit.script."""
        raise RuntimeError(NO_TRACING)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Use tensors as parameters, without a copy; also for a model on the meta device.

        Args:
            weights: One tensor per parameter name.
        """
        self.load_state_dict(dict(weights), assign=True)
        self.boundary_ids = torch.from_numpy(self.word_ids.boundaries).to(next(self.parameters()).device)

    def digest(self) -> str:
        """The SHA-256 of the sizes and of the weights as they are, on any device."""
        digest = hashlib.sha256(json.dumps(to_mapping(self.config), sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    # ---- words -> context-free vectors -------------------------------------------------------------------------------

    def embed_words(self, ids: Tensor) -> Tensor:
        """Context-free vectors of words.

        Args:
            ids: Shifted ids (N, C), (N,) or (N, 1 + C), on any device.

        Returns:
            (N, P) on the model's device.

        Raises:
            ValueError: If the ids have a wrong shape or type, or are on the host and out of range.
        """
        check_words(ids, self.word_ids)  # `forward` checks the range of every id
        kernels.check_dtype(next(self.parameters()))
        encoder = self.char_encoder if self.lexicon_encoder is None else self.lexicon_encoder
        if encoder is not None:
            return self._token_vectors(encoder(ids))
        return self._token_vectors(self._look_up(to_device(ids, next(self.parameters()).device)))

    def embed_groups(self, groups: Sequence[Tensor]) -> Tensor:
        """Context-free vectors of words in groups by length, for training.

        Args:
            groups: Shifted ids on the model's device: (N, C) of each group (see `CharacterEncoder.encode_groups`); of a
                word-level model one group (N,).

        Returns:
            (N of all groups, P).
        """
        kernels.check_dtype(next(self.parameters()))
        if self.char_encoder is not None:
            return self._token_vectors(self.char_encoder.encode_groups(groups))
        return self._token_vectors(self._look_up(torch.cat(list(groups)).long()))

    def _token_vectors(self, vectors: Tensor) -> Tensor:
        """Vectors of an encoder or a table -> those that the layers read: a transformer's are normalized."""
        return norm(vectors) if self.config.architecture == "transformer" else vectors

    def _look_up(self, ids: Tensor) -> Tensor:
        assert self.word_embedding is not None
        return functional.embedding(ids - 1, self.word_embedding)

    def word_parameters(self) -> list[nn.Parameter]:
        """The parameters of context-free vectors."""
        encoder = self.char_encoder or self.lexicon_encoder
        if encoder is not None:
            return parameters_of(encoder)
        return [] if self.word_embedding is None else [self.word_embedding]

    # ---- context-free vectors -> layers ------------------------------------------------------------------------------

    def forward(
        self, ids: Tensor, *, state: State | None = None, keep_boundaries: bool = False, with_state: bool = True
    ) -> BiLMOutput:
        """Run sentences through the biLM. Boundary tokens are added to each sentence.

        Args:
            ids: Shifted ids (B, T, C), (B, T) or (B, T, 1 + C).
            state: State after the batch before this one; None starts from zeros.
            keep_boundaries: Keep the boundary tokens in the result, which then has T + 2 tokens.
            with_state: Return the state, which is gathered from all layers.

        Raises:
            ValueError: If the ids or the state have a wrong shape, type or range.
            RuntimeError: Under torch.export or torch.jit, which cannot record a biLM.
        """
        _refuse_tracing()
        with self.without_openmp():
            mask = token_mask(ids, self.word_ids)
            num_rows, num_steps = mask.shape
            lengths = mask.sum(dim=1)  # (B,)
            words, inverse = distinct_rows(ids[mask])
            words = torch.cat([self.boundary_ids, words])
            # vector 0 is <S>, 1 is </S>; which one is at padding does not matter
            index = torch.zeros((num_rows, num_steps + 2), dtype=torch.long, device=ids.device)
            index[:, 1:-1][mask] = inverse + 2
            index.scatter_(1, lengths.unsqueeze(1) + 1, 1)
        vectors = self.embed_words(words)  # (2 + N, P)
        with self.without_openmp():
            tokens = take_rows(vectors, index.t())
        return self.contextualize(
            tokens, lengths + 2, state=state, keep_boundaries=keep_boundaries, with_state=with_state
        )

    def without_openmp(self) -> contextlib.AbstractContextManager[None]:
        """Where layers run on a CPU without gradients: what PyTorch computes beside them does not take their cores."""
        is_used = self.boundary_ids.is_cpu and not torch.is_grad_enabled()
        is_quiet = is_used and cpu.is_available(next(self.parameters()))
        return cpu.without_openmp() if is_quiet else contextlib.nullcontext()

    def contextualize(
        self,
        tokens: Tensor,
        lengths: Tensor,
        *,
        state: State | None = None,
        keep_boundaries: bool = False,
        with_state: bool = True,
        padded: bool = True,
    ) -> BiLMOutput:
        """Run the layers over token vectors.

        Args:
            tokens: (T, B, P), time first, each row with its boundary tokens.
            lengths: (B,) number of tokens per row, with boundaries; vectors after them are not read.
            state: State after the batch before this one; None starts from zeros.
            keep_boundaries: Keep the boundary tokens in the result.
            with_state: Return the state, which is gathered from all layers.
            padded: Rows may be shorter than T. A sentence alone is not, and is not to wait for operations on padding.
        """
        with self.without_openmp():
            num_steps, num_rows = tokens.shape[:2]
            mask, x = None, tokens
            if padded:
                mask = torch.arange(num_steps, device=tokens.device).unsqueeze(1) < lengths  # (T, B)
                x = torch.where(mask.unsqueeze(-1), tokens, 0.0)  # (T, B, P)
            if state is not None:
                state = self._check_state(state, num_rows)
            both = x.expand(2, *x.shape)  # (D, T, B, P), as each of the layers
            layers, after = self.run_layers(both, lengths, state, with_state=with_state)
            if mask is None:  # now, when a GPU already computes the layers
                mask = torch.ones((num_steps, num_rows), dtype=torch.bool, device=tokens.device)
            if isinstance(after, AttentionState):  # autocast computes in another dtype
                keys, values = after.past_keys.to(tokens.dtype), after.past_values.to(tokens.dtype)
                after = AttentionState(keys, values, after.num_past)
            if not keep_boundaries:
                mask, layers = mask[2:], [outputs[:, 1:-1] for outputs in layers]
            # (D, T, B, P) each -> (L+1, T, B, 2P)
            stacked = torch.stack([outputs.permute(1, 2, 0, 3) for outputs in layers]).flatten(-2)
            if not keep_boundaries and len(mask):
                # without boundaries a sentence is two tokens shorter: its </S> becomes padding
                rows = torch.arange(num_rows, device=lengths.device)
                ends = (lengths - 2).clamp(max=len(mask) - 1)
                is_longest = (lengths == num_steps).unsqueeze(-1)  # their </S> was removed with the last step
                stacked[:, ends, rows] = torch.where(is_longest, stacked[:, ends, rows], 0.0)
            return BiLMOutput(stacked.transpose(1, 2), mask.t(), after)  # (L+1, B, T, 2P), (B, T)

    def run_layers(
        self,
        x: Tensor,
        lengths: Tensor,
        state: State | None,
        *,
        dropout: Callable[[Tensor], Tensor] | None = None,
        with_state: bool = True,
        only_top: bool = False,
    ) -> tuple[list[Tensor], State | None]:
        """Run every layer, in both directions.

        Args:
            x: (D, T, B, P) token vectors. The directions may read different tokens, as in training; direction 1
                runs from the last step to the first.
            lengths: (B,) number of tokens per row.
            state: State before the first token; None if there is nothing before it.
            dropout: Applied to the input of each LSTM layer, which skip connections also use, and to the last output;
                or to the token vectors and to what each half of a transformer block adds.
            with_state: Return the state, which is gathered from all layers.
            only_top: Return the last layer only.

        Returns:
            (D, T, B, P) of each of the L+1 layers, the first of which is the input, and the state after the last token.
        """
        config = self.config
        if config.architecture == "transformer":
            assert state is None or isinstance(state, AttentionState)
            blocks = cast(Sequence[Block], self.layers)
            sizes = AttentionSizes(config.num_heads, config.attention_window)
            return run_blocks(
                blocks, x, lengths, state, sizes, dropout=dropout, with_state=with_state, only_top=only_top
            )
        assert state is None or isinstance(state, BiLMState)
        drop = dropout or (lambda y: y)
        x = drop(x)
        layers, states = [x], []
        for number, layer in enumerate(self.layers):
            before = None if state is None else LSTMState(state.hidden[number], state.cell[number])
            outputs, after = layer(x, lengths, before)
            if number > 0 and config.skip_connections:
                outputs = outputs + x
            x = drop(outputs)
            layers.append(x)
            if with_state:
                states.append(after)
        layers = layers[-1:] if only_top else layers
        if not with_state:
            return layers, None
        # an engine's cells may be wider than the weights
        dtype = next(self.parameters()).dtype if state is None else state.hidden.dtype
        return layers, BiLMState(*(torch.stack(parts).to(dtype) for parts in zip(*states, strict=True)))

    def initial_state(self, num_rows: int) -> State:
        """The state before the first token: zeros."""
        like = next(self.parameters())
        if self.config.architecture == "transformer":
            keys, values, num_past = self._state_shapes(num_rows)
            counts = torch.zeros(num_past, dtype=torch.int64, device=like.device)
            return AttentionState(like.new_zeros(keys), like.new_zeros(values), counts)
        return BiLMState(*(like.new_zeros(shape) for shape in self._state_shapes(num_rows)))

    def _state_shapes(self, num_rows: int) -> list[tuple[int, ...]]:
        config = self.config
        rows = (config.num_layers, 2, num_rows)
        if config.architecture == "transformer":
            past = (*rows, config.attention_window - 1, config.projection_dim)
            return [past, past, (1, 1, num_rows)]
        return [(*rows, config.projection_dim), (*rows, config.cell_dim)]

    def _check_state(self, state: State, num_rows: int) -> State:
        kind = AttentionState if self.config.architecture == "transformer" else BiLMState
        if not isinstance(state, kind):
            raise ValueError(f"state must be a {kind.__name__}, as in the output of a run, or None, not {state!r}")
        like = next(self.parameters())
        for name, part, wanted in zip(state._fields, state, self._state_shapes(num_rows), strict=True):
            if part.shape != wanted:
                raise ValueError(
                    f"state.{name} is {tuple(part.shape)}, this batch needs {wanted} "
                    "(layers, directions, rows, width): pass the state of a batch with as many rows, or None"
                )
            dtype = torch.int64 if name == "num_past" else like.dtype
            if (part.dtype, part.device) != (dtype, like.device):
                raise ValueError(f"state.{name} is {part.dtype} on {part.device}, the model {dtype} on {like.device}")
        return state


def _refuse_tracing() -> None:
    """Raise a RuntimeError in torch.export and torch.jit.trace: they would record the lengths of one batch."""
    is_exporting = getattr(torch.compiler, "is_exporting", bool)  # not in PyTorch 2.6
    if is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(NO_TRACING)


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module and of its parts, in the order of `module.parameters()`.

    That makes the name of each as well, which took a tenth of the host's time for one sentence.
    """
    parameters: list[nn.Parameter | None] = []
    parts: list[nn.Module | None] = [module]
    while parts:
        if (part := parts.pop()) is not None:
            parameters += part._parameters.values()
            parts += reversed(part._modules.values())
    return [parameter for parameter in parameters if parameter is not None]
