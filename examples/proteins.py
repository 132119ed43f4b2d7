"""One vector for each protein of a FASTA file, as SeqVec (Heinzinger et al., 2019) makes them.

    python examples/proteins.py proteins.fasta vectors.npz --model FOLDER
    python examples/proteins.py

Input: a FASTA file and the folder of a protein ELMo (options.json, weights.hdf5). Output: an .npz file with an array
for each protein: the mean over its residues of the sum of the layers; with --residues the sum for each residue.  Prints
the proteins and how alike they are.  Without a file: three short proteins through the embedded model, which was trained
on English and knows nothing of proteins, so that the script can be tried offline.
"""

import argparse
from itertools import combinations

import numpy as np

from elmokit import ELMo
from elmokit.compat import SeqVecEmbedder, read_fasta

THREE = {
    "insulin-A": "GIVEQCCTSICSLYQLENYCN",
    "insulin-B": "FVNQHLCGSHLVEALYLVCGERGFFYTPKT",
    "glucagon": "HSQGTFTSDYSKYLDSRRAQDFVQWLMNT",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Vectors of proteins.")
    parser.add_argument("fasta", nargs="?", help="the proteins; by default three short ones")
    parser.add_argument("npz", nargs="?", help="where the vectors go; by default nowhere")
    parser.add_argument(
        "--model", help="the folder of a protein ELMo; by default the embedded model, to try the script"
    )
    parser.add_argument("--residues", action="store_true", help="write a vector for each residue")
    options = parser.parse_args()

    proteins = THREE if options.fasta is None else read_fasta(options.fasta)
    embedder = SeqVecEmbedder(ELMo.from_pretrained(options.model))
    layers = dict(zip(proteins, embedder.embed_many(proteins.values()), strict=True))  # (3, L, 1024) each
    vectors = {name: embedder.reduce_per_protein(values) for name, values in layers.items()}
    for name, sequence in proteins.items():
        print(f"{name:12} {len(sequence)} residues")
    for (first, a), (second, b) in combinations(list(vectors.items())[:5], 2):
        cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        print(f"{first} and {second}: cosine {cosine:.2f}")
    if options.npz is not None:
        written = {name: embedder.reduce_per_residue(values) for name, values in layers.items()}
        np.savez(options.npz, **(written if options.residues else vectors))


if __name__ == "__main__":
    main()
