"""The perplexity of a prepared corpus, measured as in the publication.

Input: a biLM with its output layer, and a corpus, which is read as in training: two streams with the state carried.
Output: a `Perplexity`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from elmokit.corpus.prepared import Corpus
from elmokit.corpus.streams import evaluation_batches, stream_layout
from elmokit.inference.scores import Perplexity, perplexity_of_sums
from elmokit.network import BiLM, OutputLayer, State

TOKENS_AT_ONCE = 1 << 22  # number of tokens that are counted at a time, to bound the memory
KNOWN_FORMS = 1 << 16  # number of word forms whose vectors are kept while a text is read


def heldout_perplexity(
    bilm: BiLM,
    output_layer: OutputLayer,
    corpus: Corpus,
    *,
    batch_size: int = 32,
    unroll: int = 20,
    unk_id: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """The perplexity of a prepared corpus, with the full softmax and the state carried.

    Args:
        bilm: The network.
        output_layer: Its output layer.
        corpus: Text that was prepared with the vocabulary of the output layer.
        batch_size: Number of rows that the text is split into.
        unroll: Number of tokens per row and batch. It changes the memory needed, not the result.
        unk_id: Id of <UNK> in the vocabulary, to count the unknown tokens and to measure the perplexity without them.
        progress: Called after each batch with the number of predictions done in each direction, and of all.

    Raises:
        ValueError: If the corpus was prepared with a larger vocabulary.
    """
    if corpus.form_targets.max() >= output_layer.num_words:
        raise ValueError(
            f"{corpus.folder} has word ids up to {corpus.form_targets.max()}, the softmax has {output_layer.num_words} "
            "words: prepare the text with the vocabulary of the model"
        )
    device = output_layer.weight.device
    batch_size = min(batch_size, corpus.num_sentences)
    state: State | None = None
    sums, count = torch.zeros(2, dtype=torch.float64, device=device), 0
    known_sums, num_unknown = torch.zeros_like(sums), 0
    form_vectors = _FormVectors(bilm, corpus)
    with torch.no_grad():
        for batch in evaluation_batches(corpus, batch_size=batch_size, unroll=unroll):
            assert batch.weights is not None
            tokens = form_vectors(stream_layout(batch.forward_inputs, batch.backward_inputs))  # (D, T, B, P)
            lengths = torch.full((batch_size,), tokens.shape[1], dtype=torch.long, device=device)
            (top,), state = bilm.run_layers(tokens, lengths, state, only_top=True)
            targets = stream_layout(batch.forward_targets, batch.backward_targets).astype(np.int64)
            weights = stream_layout(batch.weights, batch.weights)
            log_probs = output_layer.log_probs(top, torch.from_numpy(targets).to(device))  # (D, T, B)
            # a row that has ended continues with weight 0
            sums += (log_probs * torch.from_numpy(weights).to(device)).sum(dim=(1, 2), dtype=torch.float64)
            count += int(batch.weights.sum())
            if unk_id is not None:
                known = weights * (targets != unk_id).astype(np.float32)
                known_sums += (log_probs * torch.from_numpy(known).to(device)).sum(dim=(1, 2), dtype=torch.float64)
                num_unknown += int((batch.weights * (batch.forward_targets == unk_id)).sum())
            if progress is not None:
                progress(count, corpus.num_pairs)
    forward, backward = sums.tolist()
    if unk_id is None:
        return perplexity_of_sums(forward, backward, count)
    return perplexity_of_sums(forward, backward, count, num_unknown=num_unknown, known=sum(known_sums.tolist()))


class _FormVectors:
    """Context-free vectors of word forms; each form is encoded once, until there are `KNOWN_FORMS` of them.

    Args:
        bilm: The network. Its weights must not change.
        corpus: The corpus of the forms.
    """

    def __init__(self, bilm: BiLM, corpus: Corpus) -> None:
        self.bilm, self.corpus = bilm, corpus
        self._forget()

    def _forget(self) -> None:
        self._slots = np.full(len(self.corpus.form_targets), -1)  # row of each form in the table; -1: not encoded
        self._table: torch.Tensor | None = None  # (slots, P)

    def __call__(self, forms: npt.NDArray[np.generic]) -> torch.Tensor:
        """Forms of any shape -> their vectors (..., P)."""
        if self._table is not None and len(self._table) > KNOWN_FORMS:
            self._forget()
        distinct = np.unique(forms)
        new = distinct[self._slots[distinct] < 0]
        if len(new):
            ids = torch.from_numpy(self.corpus.ids_of(new, self.bilm.word_ids)).long()
            vectors = self.bilm.embed_words(ids)
            known = vectors.new_empty(0, vectors.shape[1]) if self._table is None else self._table
            self._slots[new] = np.arange(len(known), len(known) + len(new))
            self._table = torch.cat([known, vectors])
        assert self._table is not None
        return self._table[torch.from_numpy(self._slots[forms]).to(self._table.device)]


def unigram_perplexity(train: Corpus, heldout: Corpus, num_words: int) -> float:
    """The perplexity of `heldout` by a unigram model of `train` with add-one smoothing: the baseline.

    Args:
        train: The corpus whose words are counted.
        heldout: The corpus to measure.
        num_words: Number of words of the vocabulary.
    """
    counts = np.zeros((2, num_words), np.int64)
    for corpus, count in zip((train, heldout), counts, strict=True):
        targets = np.asarray(corpus.form_targets)
        for begin in range(1, len(corpus.stream), TOKENS_AT_ONCE):
            forms = corpus.check_forms(np.asarray(corpus.stream[begin : begin + TOKENS_AT_ONCE]))
            forms = np.maximum(forms, 1)  # a boundary is predicted as </S>
            count += np.bincount(targets[forms], minlength=num_words)
    log_probs = np.log((counts[0] + 1) / (counts[0].sum() + num_words))
    return float(np.exp(-(log_probs @ counts[1]) / counts[1].sum()))
