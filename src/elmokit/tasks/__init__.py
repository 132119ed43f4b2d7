"""The six tasks of the paper, part-of-speech tagging, chunking and pronouns, with and without ELMo; word senses.

    from elmokit.tasks import TaskConfig, load_task, train

    train(TaskConfig(task="ner", train="train.conll", dev="dev.conll", out="runs/ner"))
    load_task("runs/ner").predict(["Maria Schmidt flew to Rome ."])

    settings.py     the settings of a training (`TaskConfig`), recipes
    task.py         what a task is (`Task`): implement it to write a new one
    trained.py      a task with its weights (`TrainedTask`), and its folder
    trainer.py      one trainer for all tasks
    learning.py     how a network gets its weights: by gradients, or from one sum
    inputs.py       tokens -> the vectors that a task's network reads
    vectors.py      static word vectors, and the layers of a frozen biLM on disk
    layers.py       layers that the networks share
    metrics.py      scores
    texts.py        text that a user passes to `predict` -> tokens
    compare.py      the same training with and without ELMo: tables (tables.py) and plots (plots.py)
    side_by_side.py several trainings at the same time

The tasks themselves: tagging.py, sentiment.py, entailment.py, questions.py, roles.py, coreference.py and pronouns.py,
which share span_pairs.py; senses.py, with lemmas.py, which finds the words of a dictionary in text.
"""

from __future__ import annotations

from typing import Any

from elmokit.tasks import coreference, entailment, pronouns, questions, roles, senses, sentiment, tagging
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import Task
from elmokit.tasks.trained import TrainedTask, load_task
from elmokit.tasks.trainer import Progress, TaskResult, train

TASKS: dict[str, Task[Any, Any]] = {
    "ner": tagging.NER,
    "chunking": tagging.CHUNKING,
    "pos": tagging.POS,
    "sentiment": sentiment.SENTIMENT,
    "entailment": entailment.ENTAILMENT,
    "questions": questions.QUESTIONS,
    "roles": roles.ROLES,
    "coreference": coreference.COREFERENCE,
    "pronouns": pronouns.PRONOUNS,
    "wsd": senses.WSD,
}
PACKAGE_TASKS = dict(TASKS)  # those that another process knows too, whatever a script adds to TASKS

__all__ = ["TASKS", "Progress", "Task", "TaskConfig", "TaskResult", "TrainedTask", "load_task", "train"]
