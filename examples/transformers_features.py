"""ELMo as a transformers model: save it, load it by AutoModel, and ask each layer what "bank" means.

    python examples/transformers_features.py

Needs `pip install "elmokit[transformers]"`, no download, and some seconds.  Prints, for each layer, how alike "bank" is
in two sentences about money and in one about money and one about a river: the context-free layer 0 cannot tell them
apart, the others can.
"""

import tempfile

import torch
from transformers import AutoModel, AutoTokenizer

from elmokit import ELMo
from elmokit.integrations.transformers import ElmokitModel, ElmokitTokenizer

SENTENCES = ["The bank lent him money.", "Her bank charges interest.", "They walked along the bank of the river."]


def main() -> None:
    elmo = ELMo.from_pretrained()
    with tempfile.TemporaryDirectory() as folder:
        ElmokitModel.from_elmo(elmo).save_pretrained(folder)
        ElmokitTokenizer.from_elmo(elmo).save_pretrained(folder)
        model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        layers = model(**batch, output_hidden_states=True).hidden_states
    places = [tokenizer.tokenize(sentence).index("bank") for sentence in SENTENCES]
    print("layer  money and money  money and river")
    for number, layer in enumerate(layers):
        money, loan, river = torch.nn.functional.normalize(layer[range(3), places], dim=-1)
        print(f"{number:5}  {money @ loan:15.2f}  {money @ river:15.2f}")


if __name__ == "__main__":
    main()
