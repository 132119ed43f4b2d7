"""Search by meaning: ELMo inside sentence-transformers, whose own search finds the sentence nearest to a question.

    python examples/sentence_search.py

Needs `pip install "elmokit[sentence-transformers]"`, no download, and some seconds.  Prints for each question the two
nearest sentences with their cosines.
"""

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import semantic_search

from elmokit import ELMo
from elmokit.integrations.sentence_transformers import ElmoEmbeddings

SENTENCES = [
    "The central bank raised interest rates again.",
    "Heavy rain flooded the streets of the town.",
    "The orchestra played a symphony by Mozart.",
    "The striker scored two goals in the final match.",
    "She baked a cake with apples and cinnamon.",
]
QUESTIONS = ["A storm hit the city.", "The team won the game.", "He played the violin at the concert."]


def main() -> None:
    model = SentenceTransformer(modules=[ElmoEmbeddings(ELMo.from_pretrained())], device="cpu")
    vectors, questions = (model.encode(texts, convert_to_tensor=True) for texts in (SENTENCES, QUESTIONS))
    mean = vectors.mean(dim=0)  # vectors of a biLM have similar directions: without the mean, cosines tell more
    for question, hits in zip(QUESTIONS, semantic_search(questions - mean, vectors - mean, top_k=2), strict=True):
        print(question)
        for hit in hits:
            print(f"  {hit['score']:5.2f}  {SENTENCES[hit['corpus_id']]}")


if __name__ == "__main__":
    main()
