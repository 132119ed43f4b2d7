"""A phrase of two words in two senses: vectors of spans that are held as places in a text.

    python examples/phrases.py

prints

                     cheese sandwich old cat
    hot dog (food)              0.62    0.50
    hot dog (animal)            0.41    0.73
"""

import numpy as np

from elmokit import ELMo, embed_spans

TEXTS = {
    "hot dog (food)": "He ate a hot dog with mustard at the stadium.",
    "hot dog (animal)": "The hot dog lay panting in the shade.",
    "cheese sandwich": "She ordered a cheese sandwich for lunch.",
    "old cat": "Their old cat slept on the porch.",
}


def main() -> None:
    spans = []
    for name, text in TEXTS.items():
        phrase = name.split(" (")[0]
        start = text.index(phrase)
        spans.append([(start, start + len(phrase))])
    vectors = np.concatenate(embed_spans(ELMo.from_pretrained(), list(TEXTS.values()), spans, unit="characters"))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = list(TEXTS)
    print(" " * 16, *names[2:])
    for name, row in zip(names[:2], vectors[:2] @ vectors[2:].T, strict=True):
        print(f"{name:16}", *(f"{cosine:{len(other)}.2f}" for cosine, other in zip(row, names[2:], strict=True)))


if __name__ == "__main__":
    main()
