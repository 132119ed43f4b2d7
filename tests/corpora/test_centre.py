"""Layer 0 of a model is centred, and nothing else changes."""

import numpy as np
import torch
from centre import centre

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.network import OutputLayer

SENTENCES = ["我去银行取钱。", "他坐在河边看书", "银行在河边。"]


def test_layer_0_has_mean_zero_and_no_prediction_changes():
    torch.manual_seed(0)
    words = ["<S>", "</S>", "<UNK>", *"我去银行取钱。"]
    config = BiLMConfig(char_dim=4, filters=((1, 8), (3, 8)), num_highways=1, cell_dim=12, projection_dim=6)
    elmo = ELMo(BiLM(config), output_layer=OutputLayer(len(words), 6), vocabulary=Vocabulary(words), tokenizer="han")
    elmo.eval()
    before, scores = elmo.embed(SENTENCES, layers="all"), elmo.log_probs(SENTENCES)
    share = centre(elmo, SENTENCES)
    after = elmo.embed(SENTENCES, layers="all")
    old, new = np.concatenate([v[0] for v in before]), np.concatenate([v[0] for v in after])
    np.testing.assert_allclose(new, old - old.mean(axis=0), atol=1e-6)
    expected = np.linalg.norm(old.mean(axis=0)) / np.linalg.norm(old, axis=1).mean()
    assert abs(share - expected) < 1e-6  # the halves of layer 0 are equal
    for one, two in zip(before, after, strict=True):
        np.testing.assert_allclose(two[1:], one[1:], atol=1e-6)
    for one, two in zip(scores, elmo.log_probs(SENTENCES), strict=True):
        np.testing.assert_allclose(two.forward, one.forward, atol=1e-5)
        np.testing.assert_allclose(two.backward, one.backward, atol=1e-5)
