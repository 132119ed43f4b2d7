"""Subtract the mean of layer 0 from layer 0 of a trained model, without a change of its predictions.

    python corpora/centre.py MODEL TEXT OUT [--dtype int8] [--tokens 64000]

Input: a model folder that reads characters, with LSTM layers, and a text, one sentence per line. Output: a model folder
whose token vectors have mean zero over the text: the mean goes from the bias of the encoder's projection into the bias
of the first LSTM layer. All other layers and the softmax stay the same. After it, cosines of layer 0, of mixes with it
and of the view "sense", which reads it, spread out: training leaves a large component that all words have in common.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from elmokit import ELMo


@torch.no_grad()
def centre(model: ELMo, sentences: list[str]) -> float:
    """Centre layer 0 of a model in place.

    Args:
        model: A model that reads characters, with LSTM layers.
        sentences: A text.

    Returns:
        The length of the mean, over the mean length of a token's vector.
    """
    vectors = torch.cat([torch.from_numpy(rows) for rows in model.embed(sentences, layers=0)])
    half = vectors[:, : model.config.projection_dim].double()  # both halves of layer 0 are equal
    mean = half.mean(dim=0)
    first = model.bilm.layers[0]
    model.bilm.char_encoder.projection.bias -= mean.float()
    first.bias += torch.einsum("p,dpg->dg", mean, first.input_weight.double()).float()
    model.forget_words()
    return float(mean.norm() / half.norm(dim=-1).mean())


def main() -> None:
    """Centre a model folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("out")
    parser.add_argument("--dtype", choices=["float32", "float16", "int8"], help="How the weights are stored.")
    parser.add_argument("--tokens", type=int, default=64_000, help="Number of tokens of the text that are read.")
    options = parser.parse_args()
    model = ELMo.from_pretrained(options.model)
    sentences: list[str] = []
    count = 0
    with options.text.open(encoding="utf-8") as file:
        for line in filter(str.strip, file):
            if count >= options.tokens:
                break
            sentences.append(line.strip())
            count += len(model.tokenizer(line))
    share = centre(model, sentences)
    model.save_pretrained(options.out, dtype=options.dtype)
    print(f"{options.out}: the mean of layer 0 over {count:,} tokens was {share:.2f} of the mean length of a token")


if __name__ == "__main__":
    main()
