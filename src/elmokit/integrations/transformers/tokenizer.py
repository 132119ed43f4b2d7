"""The tokenizer: text -> words -> `input_ids`, one row of 50 character ids per word, and back."""

# transformers calls itself typed, and leaves many of its functions without types
# mypy: disable-error-code="no-untyped-call, untyped-decorator, override"

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from transformers import BatchEncoding, PreTrainedTokenizer
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils.generic import PaddingStrategy

from elmokit.model import ELMo
from elmokit.text import EOW, MAX_CHARACTERS, PAD, Token, Tokenizer, TokenizerName, as_list, as_tokens, words_to_ids


class ElmokitTokenizer(PreTrainedTokenizer):
    """Text -> words -> `input_ids`, one row of 50 character ids per word.

    One word is one token, with `is_split_into_words` as without, so labels of words need no alignment. No special
    tokens are added: the model adds the sentence boundaries. Padding is rows of zeros on the right.

    Args:
        max_characters: Number of ids per word.
        pad_token: Name of the padding.
        word_tokenizer: How text is cut into words: "treebank", "spaces", "characters" or "han".
    """

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012 (as transformers has it)
    padding_side = "right"

    def __init__(
        self,
        max_characters: int = MAX_CHARACTERS,
        pad_token: str = "<pad>",
        word_tokenizer: TokenizerName = "treebank",
        **settings: Any,
    ) -> None:
        self.max_characters = max_characters
        self._word_tokenizer = Tokenizer(word_tokenizer)
        # a vocabulary of characters: the padding, bytes, and the marks of sentences and words
        names = [chr(byte) for byte in range(256)] + ["<bos>", "<eos>", "<bow>", "<eow>", "<pad character>"]
        self._characters = {str(pad_token): 0} | {name: place for place, name in enumerate(names, 1)}
        super().__init__(max_characters=max_characters, pad_token=pad_token, word_tokenizer=word_tokenizer, **settings)

    @classmethod
    def from_elmo(cls, elmo: ELMo) -> Self:
        """The tokenizer that makes the ids of a model.

        Args:
            elmo: The model.
        """
        return cls(max_characters=elmo.config.max_characters, word_tokenizer=elmo.tokenizer.name)

    @property
    def vocab_size(self) -> int:
        """Number of character ids, with the padding of sentences."""
        return len(self._characters)

    def get_vocab(self) -> dict[str, int]:
        """The names of the character ids. Bytes have the names of the characters of Latin-1."""
        return dict(self._characters)

    def tokenize(self, text: str, **unused: Any) -> list[str]:
        """The words of a text."""
        return self._word_tokenizer(text)

    def _convert_token_to_id(self, token: str) -> list[int]:
        return self._rows([token])[0].tolist()  # type: ignore[no-any-return]

    def _rows(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        return words_to_ids(words, max_characters=self.max_characters).astype(np.int64) + 1

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        *,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: Any = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        **unused: Any,
    ) -> BatchEncoding:
        """What a call of the tokenizer does; `unused` are options of transformers without effect here."""
        if text_pair is not None or return_overflowing_tokens:
            asked = "text_pair" if text_pair is not None else "return_overflowing_tokens"
            raise ValueError(f"ELMo reads one sentence at a time, so {asked} has no meaning here: leave it out")
        # a list of words is one sentence if the caller says so; any other list is a batch
        items = [text] if isinstance(text, str) else as_list(text)
        is_one = isinstance(text, str) or (is_split_into_words and all(isinstance(item, str) for item in items))
        sentences = [text] if is_one else items
        encoded: dict[str, list[Any]] = {"input_ids": []}
        for sentence in sentences:
            if is_split_into_words == isinstance(sentence, str):
                raise ValueError(
                    f"is_split_into_words is {is_split_into_words}, and a sentence is {reprlib.repr(sentence)}: "
                    "lists of words go with True, strings with False"
                )
            if is_split_into_words:  # as with the fast tokenizers, each word is a text of its own
                tokens = [Token(word, 0, len(word)) for word in as_tokens([sentence])[0]]
            else:
                tokens = self._word_tokenizer.with_offsets(sentence)
            if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
                begin = max(0, len(tokens) - max_length) if self.truncation_side == "left" else 0
                tokens = tokens[begin : begin + max_length]
            encoded["input_ids"].append(self._rows([token.text for token in tokens]).tolist())
            if return_offsets_mapping:
                encoded.setdefault("offset_mapping", []).append([(token.start, token.end) for token in tokens])
            if return_special_tokens_mask:
                encoded.setdefault("special_tokens_mask", []).append([0] * len(tokens))
            if return_length:
                encoded.setdefault("length", []).append(len(tokens))
        padded = self.pad(
            encoded,
            padding=padding_strategy.value,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        if return_tensors is not None:
            shape = (-1, self.max_characters)  # a sentence without words would lose it
            padded["input_ids"] = [np.array(rows, dtype=np.int64).reshape(shape) for rows in padded["input_ids"]]
        elif is_one:
            padded = BatchEncoding({name: values[0] for name, values in padded.items()})
        return BatchEncoding(dict(padded), tensor_type=return_tensors)

    def _pad(
        self,
        encoded_inputs: Any,
        max_length: int | None = None,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
    ) -> dict[str, Any]:
        """Pad one sentence: transformers appends the id 0, which becomes a row of zeros here."""
        if (padding_side or self.padding_side) != "right":
            raise ValueError("padding_side must be 'right': both directions of the model start at a sentence's own end")
        encoded: dict[str, Any] = super()._pad(
            encoded_inputs,
            max_length=max_length,
            padding_strategy=padding_strategy,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        blank = [0] * self.max_characters
        encoded["input_ids"] = [list(blank) if row == 0 else row for row in encoded["input_ids"]]
        if "offset_mapping" in encoded:
            missing = len(encoded["input_ids"]) - len(encoded["offset_mapping"])
            encoded["offset_mapping"] = [*encoded["offset_mapping"], *[(0, 0)] * missing]
        return encoded

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Rows of character ids -> words, of which a row has at most 48 bytes; one row -> one word."""
        rows = np.asarray(ids)
        if rows.ndim == 1 and len(rows):
            return self._word(rows)
        words = [self._word(row) for row in rows]
        return [word for word in words if not (skip_special_tokens and word == self.pad_token)]

    def _word(self, row: npt.NDArray[np.int64]) -> str:
        """The word of one row of ids."""
        if not row.any():
            return str(self.pad_token)
        inside = [int(identity) for identity in row[1:] if identity not in (EOW + 1, PAD + 1)]
        if any(identity > 256 for identity in inside):  # a boundary of sentences
            names = list(self._characters)
            return "".join(names[identity] for identity in inside)
        return bytes(identity - 1 for identity in inside).decode(errors="replace")

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **unused: Any) -> Any:
        """One sentence (T, 50) -> its words with spaces between them; a batch (B, T, 50) -> a list of these."""
        rows = np.asarray(token_ids)
        if rows.ndim == 3:
            return [self.decode(sentence, skip_special_tokens) for sentence in rows]
        return " ".join(self.convert_ids_to_tokens(rows, skip_special_tokens))
