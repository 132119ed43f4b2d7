"""Ten examples of the tagging tasks and of sentiment, in the formats of their files."""

from pathlib import Path

SENTENCES = [
    "Maria Schmidt flew to Rome .",
    "Rome is far from Oslo .",
    "we met Ada in Lima",
    "Ada Lovelace wrote",
    "nothing happened here today",
    "Oslo",
    "from Lima to Oslo and Rome",
    "Maria met Ada Lovelace",
    "he flew home",
    "is Lima nice ?",
]


TAGS = [
    "B-PER I-PER O O B-LOC O",
    "B-LOC O O O B-LOC O",
    "O O B-PER O B-LOC",
    "B-PER I-PER O",
    "O O O O",
    "B-LOC",
    "O B-LOC O B-LOC O B-LOC",
    "B-PER O B-PER I-PER",
    "O O O",
    "O B-LOC O O",
]


SUFFIX = {"ner": ".conll", "chunking": ".txt", "pos": ".conllu", "sentiment": ".tsv"}


def write_examples(task: str, path: Path) -> Path:
    """Ten examples in the format of the task."""
    pairs = [list(zip(words.split(), tags.split(), strict=True)) for words, tags in zip(SENTENCES, TAGS, strict=True)]
    if task == "ner":
        text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in pair) for pair in pairs)
    elif task == "chunking":
        text = "\n".join("".join(f"{word} NN {tag}\n" for word, tag in pair) for pair in pairs)
    elif task == "pos":
        line = "{}\t{}\t_\t{}\t_\t_\t_\t_\t_\t_\n"
        text = "\n".join(
            "".join(line.format(number, word, tag[0]) for number, (word, tag) in enumerate(pair, 1)) for pair in pairs
        )
    else:
        text = "label\ttext\n" + "".join(f"{number % 3}\t{words}\n" for number, words in enumerate(SENTENCES))
    path.write_text(text, encoding="utf-8")
    return path
