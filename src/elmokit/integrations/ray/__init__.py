"""ELMo over Ray Data: workers, one model each, turn text or Parquet into Parquet on one machine or many.

dataset.py  a Ray Dataset -> the same Dataset with vectors
files.py    files of text or Parquet -> a folder of Parquet files; a run that was stopped resumes
blocks.py   the input of files.py, cut into blocks
workers.py  what runs on the workers
cluster.py  joining or starting a Ray cluster
"""

# ruff: noqa: E402 (a missing Ray is reported before anything imports it)

from elmokit.extras import require

require("ray.data", extra="ray")
require("pyarrow.parquet", extra="ray")

from elmokit.integrations.ray.cluster import cluster, has_gpus
from elmokit.integrations.ray.dataset import embed_dataset
from elmokit.integrations.ray.files import embed_files
from elmokit.integrations.ray.workers import Workers

__all__ = ["Workers", "cluster", "embed_dataset", "embed_files", "has_gpus"]
