"""Vectors from context in a spaCy pipeline.

    pip install "elmokit[spacy]"
    python examples/spacy_vectors.py

prints how alike the word "bank" is to itself: about money twice, and about money and about a river.
"""

import spacy

nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")
nlp.add_pipe("elmokit", config={"layers": "top"})

doc = nlp("The bank refused him a loan. The bank lent them the money. He sat by the bank of the river.")
loan, money, river = (token for token in doc if token.text == "bank")
for other in (money, river):
    print(f"{loan.similarity(other):.2f}  {loan.sent.text}  {other.sent.text}")
print(f"{doc[0:2].vector.shape[0]} numbers for the span {doc[0:2].text!r}, and for the doc: {doc.vector.shape[0]}")
