"""Why "bank" has two vectors: train a toy biLM on made sentences, then look at the word in its two senses.

    python examples/two_banks.py

Needs no download, no GPU, and a quarter of a minute.  The sentences come from two grammars, one of money and one of
rivers, which share some of their words and the word "bank"; nothing tells the model which is which.
"""

import logging
import random
import tempfile
from pathlib import Path

from elmokit import BiLMConfig, ELMo, pretrain

MONEY = {
    "who": ["The lender", "A clerk", "The company", "My aunt", "The old man"],
    "did": ["borrowed money from", "paid a debt to", "opened an account at", "took a loan from", "sued"],
    "where": ["the bank in town", "the bank with low interest", "a bank that lends", "the bank and its clerks"],
    "end": ["to buy a house .", "at a fair rate .", "for a small fee .", "on Monday ."],
}
RIVER = {
    "who": ["The fisherman", "A duck", "The boat", "My aunt", "The old man"],
    "did": ["rested near", "walked along", "drifted past", "sat down on", "slept by"],
    "where": ["the bank of the river", "the muddy bank", "a bank with tall grass", "the bank and its willows"],
    "end": ["in the warm sun .", "until the rain came .", "to watch the water .", "on Monday ."],
}


def sentence(grammar: dict[str, list[str]], rng: random.Random) -> str:
    return " ".join(rng.choice(choices) for choices in grammar.values())


def main() -> None:
    logging.disable(logging.WARNING)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, count in (("train", 4000), ("heldout", 200)):
            lines = [sentence(rng.choice([MONEY, RIVER]), rng) for _ in range(count)]
            (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print("training a toy biLM on 4,000 made sentences ...")
        result = pretrain(
            train=folder / "train.txt",
            heldout=folder / "heldout.txt",
            out=folder / "run",
            model=BiLMConfig(filters=((1, 16), (2, 32), (3, 32)), num_highways=1, cell_dim=64, projection_dim=32),
            tokenized=True,
            batch_size=32,
            steps=300,
            loss="full",
            dropout=0.0,
            optimizer="adamw",
            learning_rate=5e-3,
            final_rate=0.1,
            clip_norm=1.0,
            eval_every=100,
            checkpoint_every=300,
            tensorboard=False,
        )
        print(f"held-out perplexity {result.best.both:.1f}\n")
        model = ELMo.from_pretrained(folder / "run")

    here = "My aunt paid a debt to the bank in town on Monday ."
    others = {
        "money": "The company took a loan from the bank with low interest .",
        "river": "A duck slept by the muddy bank in the warm sun .",
    }
    print(f'"bank" in: {here}')
    print(f"{'layer':>12} {'same sense':>12} {'other sense':>12}")
    for layer in (0, 1, 2):
        same, other = (model.similarity(here, text, word="bank", layers=layer) for text in others.values())
        print(f"{layer:>12} {same:12.2f} {other:12.2f}")
    print("\nLayer 0 has not read the sentence: one vector for both. The layers above have.")


if __name__ == "__main__":
    main()
