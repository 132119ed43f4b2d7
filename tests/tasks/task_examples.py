"""Small trainings, and ten examples of the tagging tasks and of sentiment, in the formats of their files."""

from pathlib import Path

import pytest

from elmokit.tasks import TaskConfig, TrainedTask, load_task, train

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


def small_config(task: str, file: Path, folder: Path, elmo: str, /, **changes: object) -> TaskConfig:
    """One epoch on the examples of a file, with nothing dropped."""
    settings = {
        "task": task, "train": str(file), "dev": str(file), "out": str(folder / "run"), "elmo": elmo,
        "cache": str(folder / "cache"), "word_dim": 8, "char_dim": 8, "hidden_dim": 16, "dropout": 0.0,
        "elmo_dropout": 0.0, "learning_rate": 0.01, "batch_size": 4, "epochs": 1, "device": "cpu",
    }  # fmt: skip
    return TaskConfig(**{**settings, **changes})


def learn_by_heart(config: TaskConfig, *metrics: str) -> TrainedTask:
    """Train until each of the scores is 1, which it must become, and load what was saved."""

    class LearnedError(Exception):
        pass

    def stop_when_learned(progress):
        if progress.scores and [progress.scores[metric] for metric in metrics] == pytest.approx([1.0] * len(metrics)):
            raise LearnedError

    with pytest.raises(LearnedError):
        train(config, on_progress=stop_when_learned)
    return load_task(config.out, device=config.device)
