"""The perplexity of a prepared corpus: the published test.

Enters: a biLM with its output layer and a corpus, which is read as training reads it, in two streams with the state
carried.  Leaves: a `Perplexity`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.corpus.prepared import Corpus
from elmokit.corpus.streams import evaluation_batches
from elmokit.inference.scores import Perplexity, perplexity_of_sums
from elmokit.kernels import LSTMState
from elmokit.network import BiLM, BiLMState
from elmokit.network.losses import OutputLayer

TOKENS_AT_ONCE = 1 << 22  # of a corpus that is counted: memory does not grow with it


def heldout_perplexity(
    bilm: BiLM, output_layer: OutputLayer, corpus: Corpus, *, batch_size: int = 32, unroll: int = 20
) -> Perplexity:
    """The perplexity of a prepared corpus by the full softmax, state carried: the published test.

    The corpus is read as `batch_size` runs of text side by side; `unroll` changes the memory needed, not the result.
    """
    if corpus.form_targets.max() >= output_layer.num_words:
        raise ValueError(
            f"{corpus.folder} has word ids up to {corpus.form_targets.max()}, the softmax has {output_layer.num_words} "
            "words: prepare the text with the vocabulary of the model"
        )
    device = output_layer.weight.device
    batch_size = min(batch_size, corpus.num_sentences)
    state = bilm.initial_state(batch_size)
    sums, count = torch.zeros(2, dtype=torch.float64, device=device), 0
    with torch.no_grad():
        for batch in evaluation_batches(corpus, batch_size=batch_size, unroll=unroll):
            assert batch.weights is not None
            forms, index = np.unique(stream_layout(batch.forward_inputs, batch.backward_inputs), return_inverse=True)
            vectors = bilm.embed_words(form_ids(bilm.config, corpus, forms).to(device))  # (N, P)
            index = index.reshape(2, -1, batch_size)
            outputs, state = run_streams(bilm, vectors[torch.from_numpy(index).to(device)], state)  # (D, T, B, P)
            targets = stream_layout(batch.forward_targets, batch.backward_targets).astype(np.int64)
            weights = stream_layout(batch.weights, batch.weights)
            found = output_layer.log_probs(outputs, torch.from_numpy(targets).to(device))  # (D, T, B)
            # where a run has ended its row reads on, into nothing that counts
            sums += (found * torch.from_numpy(weights).to(device)).sum(dim=(1, 2), dtype=torch.float64)
            count += int(batch.weights.sum())
    forward, backward = sums.tolist()
    return perplexity_of_sums(forward, backward, count)


def unigram_perplexity(train: Corpus, heldout: Corpus, num_words: int) -> float:
    """The perplexity of `heldout` by word frequencies of `train` alone (one added to each count): the mark to beat."""
    counts = np.zeros((2, num_words), np.int64)
    for corpus, count in zip((train, heldout), counts, strict=True):
        targets = np.asarray(corpus.form_targets)
        for begin in range(1, len(corpus.stream), TOKENS_AT_ONCE):
            forms = np.maximum(corpus.stream[begin : begin + TOKENS_AT_ONCE], 1)  # a boundary is predicted as </S>
            count += np.bincount(targets[forms], minlength=num_words)
    log_probs = np.log((counts[0] + 1) / (counts[0].sum() + num_words))
    return float(np.exp(-(log_probs @ counts[1]) / counts[1].sum()))


def run_streams(
    bilm: BiLM, tokens: Tensor, state: BiLMState, *, dropout: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, BiLMState]:
    """Token vectors of two independent streams (D, T, B, P) -> the top layer's outputs (D, T, B, P), and the state.

    Unlike in `BiLM.contextualize` the directions read different tokens, every row is full, and `dropout` falls on each
    LSTM's input (and so on what a skip connection carries) and on the last output.  See `stream_layout` for the order.
    """
    drop = dropout or (lambda x: x)
    lengths = torch.full((tokens.shape[2],), tokens.shape[1], dtype=torch.long, device=tokens.device)
    x = drop(tokens)
    last: list[LSTMState] = []
    for number, layer in enumerate(bilm.layers):
        outputs, after = layer(x, lengths, LSTMState(state.hidden[number], state.cell[number]))
        if number > 0 and bilm.config.skip_connections:
            outputs = outputs + x
        x = drop(outputs)
        last.append(after)
    return x, BiLMState(torch.stack([s.hidden for s in last]), torch.stack([s.cell for s in last]))


def stream_layout(forward: npt.NDArray[np.generic], backward: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Two streams' rows (B, T), each in its own reading order -> (D, T, B).

    The LSTMs walk direction 1 from the last step down, so its rows stand with their first token last.
    """
    return np.stack([forward.T, backward.T[::-1]])


def form_ids(config: BiLMConfig, corpus: Corpus, forms: npt.NDArray[np.generic]) -> Tensor:
    """Word forms of a corpus as `BiLM.embed_words` reads them: shifted character ids (N, C), or word ids (N,)."""
    if config.num_words is not None:
        return torch.from_numpy(np.asarray(corpus.form_targets)[forms].astype(np.int64) + 1)
    return torch.from_numpy(np.asarray(corpus.forms)[forms].astype(np.int64) + 1)
