"""The types that users see, as mypy must infer them; `make types` checks this file, nothing runs it."""

from typing import assert_type

import numpy as np
import numpy.typing as npt
from torch import Tensor

from elmokit import BiLMConfig, ELMo, Perplexity, TokenLogProbs, embed_spans

model = ELMo.from_pretrained()
assert_type(model, ELMo)
assert_type(model.config, BiLMConfig)
assert_type(model.dim, int)
assert_type(model.embed(["a b"]), list[npt.NDArray[np.float32]])
assert_type(model.embed(["a b"], convert_to_tensor=True), list[Tensor])
assert_type(model.encode(["a b"]), npt.NDArray[np.float32])
assert_type(model.encode("a b", convert_to_tensor=True), Tensor)
assert_type(model.similarity("a", "b"), float)
assert_type(model.log_probs(["a"]), list[TokenLogProbs])
assert_type(model.perplexity(["a"]), Perplexity)
assert_type(model.to_ids(["a"]), Tensor)
assert_type(model.freeze, bool)
assert_type(model.unfreeze(from_layer=1), ELMo)
assert_type(model.substitutes("the [a]")[0].word, str)
assert_type(embed_spans(model, ["a b"], [[(0, 1)]]), list[npt.NDArray[np.float32]])
assert_type(embed_spans(model, ["a b"], [[(0, 1)]], convert_to_tensor=True), list[Tensor])
