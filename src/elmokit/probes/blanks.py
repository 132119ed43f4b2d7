"""Everyday sentences with a blank: does the model fill it with a word that makes sense?

Input: a model with its output layer. Output: for each sentence the words that fit best, and whether the first one is
among the words that were accepted beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from elmokit.arguments import check_instance
from elmokit.model import ELMo

NUM_SHOWN = 5

# Sentences and accepted words were written before any model was tried on them.
BLANKS: dict[str, str] = {
    "I opened an account at the [____] .": "bank",
    "She poured herself a cup of [____] .": "coffee tea water milk wine cocoa chocolate soup punch",
    "He put on his coat and opened the [____] .": "door window gate umbrella package letter",
    "The children are playing in the [____] .": "garden park yard street snow field school house playground sand woods "
    "water room sun courtyard",
    "We had to wait two hours for the [____] to arrive .": "train bus ambulance police doctor plane boat ship others "
    "rest flight car taxi mail guests",
    "The doctor told him to stop [____] .": "smoking drinking talking eating working bleeding crying running fighting",
    "She is afraid of [____] and never goes swimming .": "water drowning sharks death everything fish",
    "He lost his [____] and could not get into the house .": "key keys",
    "My brother plays the [____] in a band .": "guitar drums piano bass drum violin trumpet saxophone keyboard "
    "trombone flute organ",
    "The [____] is shining and the sky is blue .": "sun moon",
    "Please send me an [____] with the details .": "email e-mail invitation address article answer account update "
    "example invoice",
    "They got married in a small [____] near the coast .": "town village church house hotel chapel cottage city cabin "
    "place hut community island",
    "The soup is too hot to [____] .": "eat drink taste serve swallow touch cook",
    "He drives his [____] to work every morning .": "car truck bike van horse horses bus motorcycle team wagon",
    "It was raining , so I took my [____] .": "umbrella coat hat raincoat jacket boots cloak",
    "She studied [____] at university before she became a lawyer .": "law history philosophy economics politics "
    "medicine literature English theology psychology engineering journalism architecture science mathematics sociology",
    "The baby has been [____] all night .": "crying sleeping asleep awake screaming up sick ill coughing",
    "I forgot to turn off the [____] before I left .": "light lights TV television radio phone oven gas computer heat "
    "lamp alarm stove heater music heating water machine engine power",
    "The price of [____] has doubled since last year .": "oil gas food gold wheat bread petrol coal gasoline fuel "
    "housing steel rice land cotton labor sugar electricity milk living corn silver copper houses goods meat butter",
    "He fell off his [____] and broke an arm .": "bike bicycle horse motorcycle chair ladder bed pony",
}  # fmt: skip


@dataclass(frozen=True)
class FilledBlank:
    """What a model puts into a blank."""

    sentence: str
    is_accepted: bool
    """True if the first word is one of the accepted words."""
    words: dict[str, float]
    """The words that fit best, the best first, with their probabilities."""


def fill_blanks(model: ELMo, blanks: dict[str, str] = BLANKS) -> list[FilledBlank]:
    """Fill the blank of each sentence.

    Args:
        model: A language model.
        blanks: Sentence with a blank `[____]` -> accepted words, separated by spaces.

    Raises:
        ValueError: If the model has no softmax, a sentence has no blank, or an argument is wrong.
    """
    check_instance("model", model, ELMo, "a model, such as ELMo.from_pretrained()")
    check_instance("blanks", blanks, dict, "a dict from sentences with a blank [____] to accepted words")
    results = []
    for sentence, accepted in blanks.items():
        check_instance(f"blanks[{sentence!r}]", accepted, str, "accepted words, separated by spaces")
        words = {one.word: math.exp(one.log_prob) for one in model.substitutes(sentence, k=NUM_SHOWN)}
        results.append(FilledBlank(sentence, next(iter(words), None) in accepted.split(), words))
    return results
