"""A corpus in Parquet, embedded by the workers of a Ray cluster: here one that starts and ends with the script.

    pip install "elmokit[ray]"
    python examples/ray_corpus.py

Prints the rows of the result, in the order of the corpus, and how alike "bank" is in each of them to the first:

    line  id         tokens  vectors    bank ~ first
       0  loan            7  (7, 512)           1.00
       1  river          10  (10, 512)          0.44
       2  overdraft       7  (7, 512)           0.65

On a cluster of many machines, give its address to `cluster`, and paths that all of them see.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from elmokit import ELMo
from elmokit.integrations.ray import cluster, embed_files
from elmokit.vector_files import VectorFile

SENTENCES = {
    "loan": "The bank refused him a loan.",
    "river": "He sat by the bank of the wide river.",
    "overdraft": "Her bank charges for the overdraft.",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "corpus.parquet", Path(folder) / "vectors.parquet"
        corpus = {"id": list(SENTENCES), "text": list(SENTENCES.values())}
        pyarrow.parquet.write_table(pyarrow.table(corpus), source)
        with cluster("local"):
            embed_files(source, VectorFile(target, "parquet", layers="top"), model=ELMo.from_pretrained())
        rows = pyarrow.parquet.read_table(target).to_pylist()

    print(f"{'line':>4}  {'id':<9}  tokens  {'vectors':<9}  bank ~ first")
    banks = [np.array(row["vectors"])[row["tokens"].index("bank")] for row in rows]
    for row, bank in zip(rows, banks, strict=True):
        cosine = bank @ banks[0] / np.linalg.norm(bank) / np.linalg.norm(banks[0])
        shape = str(np.shape(row["vectors"]))
        print(f"{row['line']:>4}  {row['id']:<9}  {len(row['tokens']):>6}  {shape:<9}  {cosine:>12.2f}")


if __name__ == "__main__":
    main()
