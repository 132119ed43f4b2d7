"""A transformer of the sizes of all-MiniLM-L6-v2 with random weights: its time does not depend on them.

Input: text, from which word pieces are learned.  Output: token vectors of sentences in the fastest of four batch sizes,
sorted by length.  The vocabulary is made so small that a word has at least 1.2 pieces, as English text has with BERT's.
"""

from __future__ import annotations

import time

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import BertConfig, BertModel

BATCH_SIZES = (8, 16, 32, 64)
PIECES_PER_WORD = 1.2


class MiniLM:
    """The model, its word pieces and its batch size.

    Args:
        lines: Text whose words are split at spaces.
    """

    def __init__(self, lines: list[str]) -> None:
        sizes = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
        self.model = BertModel(BertConfig(vocab_size=30522, **sizes), add_pooling_layer=False).eval()
        num_words = sum(len(line.split()) for line in lines)
        for num_pieces in (30522, 20000, 14000, 10000, 7000, 5000):
            self.tokenizer = learn_pieces(lines, num_pieces)
            num_found = sum(len(found.ids) for found in self.tokenizer.encode_batch(lines, add_special_tokens=False))
            self.pieces_per_word = num_found / num_words
            if self.pieces_per_word >= PIECES_PER_WORD:
                break
        times = {size: self._time(lines[:256], size) for size in BATCH_SIZES}
        self.batch_size = min(times, key=times.__getitem__)

    def _time(self, lines: list[str], batch_size: int) -> float:
        begin = time.perf_counter()
        self.embed(lines, batch_size)
        return time.perf_counter() - begin

    @torch.inference_mode()
    def embed(self, lines: list[str], batch_size: int | None = None) -> list[Tensor]:
        """Vectors of the pieces of each line, in the order of the lines."""
        batch_size = batch_size or self.batch_size
        pieces = [found.ids for found in self.tokenizer.encode_batch(lines, add_special_tokens=False)]
        order = sorted(range(len(lines)), key=lambda number: -len(pieces[number]))
        results: list[Tensor] = [torch.empty(0)] * len(lines)
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            rows = [torch.tensor(pieces[number][:512]) for number in chosen]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            mask = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows]).unsqueeze(1)
            vectors = self.model(ids, attention_mask=mask.long()).last_hidden_state
            for number, row, one in zip(chosen, rows, vectors, strict=True):
                results[number] = one[: len(row)].clone()
        return results


def learn_pieces(lines: list[str], num_pieces: int) -> Tokenizer:
    """Word pieces of text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=num_pieces, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer
