"""The paper's six tasks, tagging and chunking: readers of their data, their networks, one trainer, one metrics file.

    from elmokit.tasks import TaskConfig, load_task, train

    train(TaskConfig(task="ner", train="train.conll", dev="dev.conll", out="runs/ner"))
    load_task("runs/ner").predict(["Maria Schmidt flew to Rome ."])

How a new task is written: `elmokit.tasks.task.Task`.
"""

from __future__ import annotations

from typing import Any

from elmokit.tasks import coreference, entailment, questions, roles, sentiment, tagging
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import Task, TrainedTask, load_task
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
    "pronouns": coreference.PRONOUNS,
}

__all__ = ["TASKS", "Progress", "Task", "TaskConfig", "TaskResult", "TrainedTask", "load_task", "train"]
