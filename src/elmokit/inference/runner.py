"""Sentences run through a biLM; vectors, scores, tasks, probes and the server use this.

Input: sentences, strings or token lists.  Output: batches of sentences with every layer's vectors.  Batches are made by
length, the next sentences are tokenized while the network runs, context-free word vectors are cached between calls,
state is carried if asked for, and a batch that does not fit into memory is split in halves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from elmokit.arguments import check_choice, check_optional_integer
from elmokit.inference.batches import Batch, one_ahead, plan
from elmokit.inference.weights_watch import WeightsWatch
from elmokit.inference.word_cache import Slots, WordCache
from elmokit.network import BiLM, BiLMOutput, State, to_device
from elmokit.text import Tokenizer, WordIds, as_list, as_tokens

StateRule = Literal["stateless", "carry"]
Sentence = str | Sequence[str]

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}  # largest number of padded tokens per batch
SENTENCES_AT_ONCE = 32768  # number of sentences that are tokenized and sorted by length together
CARRIED_ROWS = 64  # default number of rows per batch if state is carried
CACHED_WORDS = 65536  # capacity of the cache of word vectors


class Runner:
    """Runs sentences through a biLM; keeps the cache of word vectors and the carried state between calls.

    Args:
        word_ids: How words become ids.
        tokenizer: How strings are split into tokens.
        state: "stateless": every sentence starts from a zero state. "carry": each row of a batch starts with the state
            in which the same row of the batch before ended.

    Raises:
        ValueError: If `state` is neither.
    """

    def __init__(self, word_ids: WordIds, tokenizer: Tokenizer, state: StateRule) -> None:
        self.word_ids, self.tokenizer, self.state = word_ids, tokenizer, state
        self._words, self._watch = WordCache(CACHED_WORDS), WeightsWatch()
        self._carried: State | None = None
        self._lock = threading.RLock()

    @property
    def state(self) -> StateRule:
        """Whether state is carried from batch to batch."""
        return self._state

    @state.setter
    def state(self, rule: StateRule) -> None:
        self._state: StateRule = check_choice("state", rule, get_args(StateRule))

    def reset_state(self) -> None:
        """Reset the carried state to zeros."""
        with self._lock:
            self._carried = None

    def forget_words(self) -> None:
        """Empty the cache of context-free word vectors."""
        self._words.forget()

    def embed_words(self, bilm: BiLM, words: Sequence[str]) -> Tensor:
        """Context-free vectors (N, P) of N words, without the cache."""
        return bilm.embed_words(torch.from_numpy(self.word_ids.ids(words)))

    @torch.no_grad()
    def run(
        self,
        bilm: BiLM,
        sentences: Sequence[Sentence],
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        use_cache: bool = True,
        ignore_state: bool = False,
    ) -> Iterator[tuple[Batch, BiLMOutput]]:
        """Run sentences, without gradients.

        Args:
            bilm: The network.
            sentences: Strings, which are tokenized, or token lists, whose tokens may be read as several units.
            batch_size: Largest number of sentences per batch.
            batch_tokens: Largest number of padded tokens per batch. Default: by device.
            use_cache: Cache context-free word vectors for later calls. Do not use it while the weights are trained.
            ignore_state: Start every sentence from a zero state, also if state is carried.

        Yields:
            A batch and its output with the boundary tokens, in the order of running.

        Raises:
            ValueError: If a size is less than 1, or an element is not a sentence.
        """
        batch_size = check_optional_integer("batch_size", batch_size)
        batch_tokens = check_optional_integer("batch_tokens", batch_tokens)
        device = bilm.boundary_ids.device  # a parameter takes longer to find
        budget: int | None
        carry = self.state == "carry" and not ignore_state
        if carry:  # batches in order: a row continues the same row of the batch before
            budget, batch_size = None, batch_size or CARRIED_ROWS
            bounds = [*range(0, len(sentences), batch_size), len(sentences)]
        else:
            budget = batch_tokens or TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"])
            bounds = _windows(sentences)

        def prepare(window: tuple[int, int]) -> list[Batch]:
            part = as_list(sentences[slice(*window)])
            if self.tokenizer.splits_words or set(map(type, part)) != {list}:
                part = as_tokens(part, self.tokenizer, first=window[0])
            return plan(part, window[0], budget=budget, batch_size=batch_size, tokenizer=self.tokenizer)

        # looking up a row of a table is as fast as looking it up in the cache
        look = self._watch.look(bilm) if use_cache and bilm.word_embedding is None else None
        if look is not None and len(sentences) > 1:  # one alone leaves some of a GPU free, and need not wait for it
            look.begin()

        def contextualize(batch: Batch) -> BiLMOutput:
            vectors, lengths = self._token_vectors(bilm, batch, None if look is None else look.key)

            def run(state: State | None) -> BiLMOutput:
                return bilm.contextualize(
                    vectors, lengths, state=state, keep_boundaries=True, with_state=carry, padded=batch.is_padded
                )

            if carry:
                return self.carrying(bilm, len(batch.tokens), run)
            output = run(None)
            # a GPU answers while it computes the first batch, so that the host need not wait before it
            return contextualize(batch) if look is not None and look.has_changed() else output

        if carry and look is not None:
            look.has_changed()  # known before the first batch, which cannot be computed again: it changes the state

        for batches in one_ahead(prepare, list(pairwise(bounds))):
            for batch in batches:
                # checked now, not before the first batch, for which a GPU would wait
                yield from _run_batch(batch.checked(), contextualize, can_split=not carry)

    def _token_vectors(self, bilm: BiLM, batch: Batch, key: int | None) -> tuple[Tensor, Tensor]:
        """Context-free vectors (T, B, P) of a batch, with boundaries, and its lengths (B,); key None: no cache."""

        def embed(new: Sequence[str]) -> Tensor:
            return self.embed_words(bilm, new)

        if key is not None:
            slots, table = self._words.lookup(batch.read, embed, key)
        else:
            distinct = Slots()
            slots = distinct.of(batch.read)
            table = embed(distinct.words())
        numbers = to_device(torch.from_numpy(_arranged(slots, batch.lengths, padded=batch.is_padded)), table.device)
        with bilm.without_openmp():
            return functional.embedding(numbers[1:], table), numbers[0]

    def carrying(self, bilm: BiLM, num_rows: int, run: Callable[[State | None], BiLMOutput]) -> BiLMOutput:
        """Run a batch with the carried state, and keep the state after it.

        Args:
            bilm: The network.
            num_rows: Number of rows of the batch.
            run: Runs the batch from a state; None is a zero state.
        """
        if self.state == "stateless":
            return run(None)
        with self._lock:
            fresh = bilm.initial_state(num_rows)
            if self._carried is not None:
                for new, old in zip(fresh, self._carried, strict=True):
                    known = min(num_rows, old.shape[2])
                    new[:, :, :known] = old[:, :, :known].to(new)
            output = run(fresh)
            assert output.state is not None
            kept = []
            for new, old in zip(output.state, self._carried or output.state, strict=True):
                # rows beyond this batch keep their state
                kept.append(torch.cat([new.detach(), old[:, :, num_rows:].to(new)], dim=2))
            self._carried = type(output.state)(*kept)
            return output

    def __getstate__(self) -> dict[str, Any]:
        """Locks and caches are not copied with a model."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_words", "_watch")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self._words, self._watch = WordCache(CACHED_WORDS), WeightsWatch()


def _run_batch(
    batch: Batch, contextualize: Callable[[Batch], BiLMOutput], *, can_split: bool
) -> Iterator[tuple[Batch, BiLMOutput]]:
    """Run a batch; if memory runs out, run its halves."""
    try:
        yield batch, contextualize(batch)
        return
    except RuntimeError as error:
        if not _is_out_of_memory(error) or len(batch.tokens) == 1 or not can_split:
            raise
    middle = len(batch.tokens) // 2
    for part in (slice(None, middle), slice(middle, None)):
        yield from _run_batch(batch.part(part), contextualize, can_split=can_split)


def _windows(sentences: Sequence[Sentence]) -> list[int]:
    """Bounds of what is tokenized and sorted together.

    The network waits for the first window. Strings take long to tokenize, so that of strings is small; token lists are
    sorted at once, because batches of a small window have more padding.
    """
    first = SENTENCES_AT_ONCE // 16 if sentences and isinstance(sentences[0], str) else SENTENCES_AT_ONCE
    return [0, *range(max(1, first), len(sentences), SENTENCES_AT_ONCE), len(sentences)]


def _arranged(slots: npt.NDArray[np.int64], lengths: Sequence[int], *, padded: bool) -> npt.NDArray[np.int64]:
    """What a device needs to know of a batch, in one array, which is one copy.

    Args:
        slots: Of <S>, </S> and all tokens of all sentences.
        lengths: B numbers of tokens.
        padded: They differ.

    Returns:
        (1 + T, B): the lengths with boundaries; then the slots of <S>, the sentence, </S> and padding, time first.
    """
    sizes = np.array(lengths)
    grid = np.full((len(sizes), sizes.max(initial=0) + 3), slots[1])
    grid[:, 0] = sizes + 2
    grid[:, 1] = slots[0]
    inside = grid[:, 2:-1]
    if padded:
        inside[np.arange(inside.shape[1]) < sizes[:, None]] = slots[2:]
    else:
        inside[:] = slots[2:].reshape(inside.shape)
    return np.ascontiguousarray(grid.T)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
