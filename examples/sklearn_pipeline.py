"""Two senses of "bank" told apart by a scikit-learn pipeline, whose layer is chosen by a search.

    python examples/sklearn_pipeline.py

prints

    layers=0        accuracy 0.81
    layers=1        accuracy 0.94
    layers=2        accuracy 1.00
    layers=average  accuracy 1.00
    river  She sat by the bank and watched the ducks.
    money  The bank sold its bonds.
"""

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from elmokit.integrations.sklearn import ELMoVectorizer

EXAMPLES = {
    "money": [
        "The bank raised its interest rates again.",
        "She opened an account at the bank.",
        "He owes the bank a large sum.",
        "The bank refused to lend them money.",
        "Our bank closed three of its branches.",
        "Shares of the bank fell on Monday.",
        "He robbed a bank in Chicago.",
        "The bank manager signed the loan.",
    ],
    "river": [
        "They sat on the bank of the river.",
        "The boat was tied to the bank.",
        "Reeds grew along the muddy bank.",
        "He fished from the bank all day.",
        "The stream overflowed its bank.",
        "Cattle drank at the grassy bank.",
        "We walked along the bank of the canal.",
        "A heron stood on the far bank.",
    ],
}
NEW = ["She sat by the bank and watched the ducks.", "The bank sold its bonds."]


def main() -> None:
    texts = [text for sense in EXAMPLES.values() for text in sense]
    labels = [label for label, sense in EXAMPLES.items() for _ in sense]
    pipeline = Pipeline([("elmo", ELMoVectorizer()), ("classify", LogisticRegression(max_iter=1000))])
    search = GridSearchCV(pipeline, {"elmo__layers": [0, 1, 2, "average"]}, cv=4).fit(texts, labels)
    results = search.cv_results_
    for layers, accuracy in zip(results["param_elmo__layers"], results["mean_test_score"], strict=True):
        print(f"layers={layers!s:8} accuracy {accuracy:.2f}")
    for text, sense in zip(NEW, search.predict(NEW), strict=True):
        print(f"{sense}  {text}")


if __name__ == "__main__":
    main()
