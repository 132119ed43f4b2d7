"""ELMo inside flair.  flair wants an older transformers than the other tests do: `make flair` runs this file."""

import doctest
import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import ELMo

ROOT = Path(__file__).resolve().parents[2]
INTEGRATION = ROOT / "src" / "elmokit" / "integrations" / "flair.py"


def test_without_flair_the_import_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flair", None)
    spec = importlib.util.spec_from_file_location("elmokit_without_flair", INTEGRATION)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[flair\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class TestWithFlair:
    """What needs the host library."""

    @pytest.fixture(autouse=True)
    def _flair(self):
        pytest.importorskip("flair", reason="flair is not here: `make flair` tests it in an environment of its own")

    @pytest.fixture
    def embeddings(self, tiny_elmo):
        from elmokit.integrations.flair import ELMoEmbeddings

        return lambda **settings: ELMoEmbeddings(tiny_elmo, **settings)

    @pytest.fixture
    def sentences(self):
        from flair.data import Sentence

        return [Sentence(["The", "bank", "lent", "money"]), Sentence(["Rain"])]

    @pytest.mark.parametrize("mode", ["all", "top", "average", "slot", "sense", "mix"])
    def test_each_token_gets_the_vector_of_its_mode(self, embeddings, sentences, tiny_elmo, mode):
        ours = embeddings(embedding_mode=mode)
        ours.embed(sentences)
        for sentence in sentences:
            model, tokens = ELMo.from_pretrained(tiny_elmo), [[token.text for token in sentence]]
            layers = model.embed(tokens, layers="all")[0]
            average = layers.mean(axis=0)
            expected = {"all": np.concatenate(layers, axis=1), "top": layers[-1], "average": average, "mix": average}
            expected |= {view: model.embed(tokens, layers=view)[0] for view in ("slot", "sense")}
            vectors = torch.stack([token.get_embedding() for token in sentence]).detach()
            np.testing.assert_allclose(vectors, expected[mode], atol=1e-6)
            assert vectors.shape[1] == ours.embedding_length == (48 if mode == "all" else 16)
        assert ours.embedding_type == "word-level"
        assert f"embedding_length={ours.embedding_length}" in repr(ours)

    def test_only_a_mix_learns(self, embeddings, sentences):
        assert embeddings().static_embeddings
        assert list(embeddings().parameters()) == []
        mix = embeddings(embedding_mode="mix")
        assert not mix.static_embeddings
        mix.embed(sentences)
        sum(token.get_embedding().square().sum() for token in sentences[0]).backward()
        assert {name for name, p in mix.named_parameters() if p.grad.abs().sum() > 0} == {"mix.weights", "mix.gamma"}

    def test_saved_embeddings_need_no_model_outside_them(self, embeddings, sentences):
        from flair.data import Sentence
        from flair.embeddings import StackedEmbeddings
        from flair.embeddings.base import load_embeddings

        ours = embeddings(embedding_mode="mix")
        with torch.no_grad():
            ours.mix.weights.copy_(torch.tensor([1.0, 2.0, -1.0]))
        read = load_embeddings(ours.save_embeddings())
        assert read.name == ours.name
        stacked = load_embeddings(StackedEmbeddings([embeddings(), embeddings(embedding_mode="top")]).save_embeddings())
        assert stacked.embedding_length == 48 + 16
        ours.embed(sentences)
        again = Sentence(["The", "bank", "lent", "money"])
        read.embed(again)
        for first, second in zip(sentences[0], again, strict=True):
            torch.testing.assert_close(first.get_embedding(), second.get_embedding(), atol=1e-6, rtol=0)

    def test_the_bilm_goes_where_the_embeddings_go(self, embeddings):
        ours = embeddings().to(torch.float64)
        assert {p.dtype for p in ours.elmo.parameters()} == {torch.float64}

    def test_official_files_load_and_wrong_settings_are_told(self, official_model):
        from elmokit.integrations.flair import ELMoEmbeddings

        model = official_model()
        ours = ELMoEmbeddings(options_file=model.options_path, weight_file=model.weights_path)
        assert ours.embedding_length == 3 * ours.elmo.config.projection_dim * 2
        with pytest.raises(ValueError, match="not 'best'"):
            ELMoEmbeddings(embedding_mode="best")
        with pytest.raises(ValueError, match="options_file and weight_file together"):
            ELMoEmbeddings(options_file=model.options_path)
        with pytest.raises(ValueError, match="options_file and weight_file together"):
            ELMoEmbeddings("small", options_file=model.options_path, weight_file=model.weights_path)

    @pytest.mark.filterwarnings("ignore:.*GradScaler:FutureWarning")  # flair calls it by its old name
    @pytest.mark.parametrize("mode", ["all", "mix"])
    def test_a_sequence_tagger_learns_is_saved_and_predicts_the_same(self, embeddings, tmp_path, mode):
        from flair.data import Corpus, Sentence
        from flair.datasets import FlairDatapointDataset
        from flair.models import SequenceTagger
        from flair.trainers import ModelTrainer

        tagged = [("The bank lent money", "DET NOUN VERB NOUN"), ("He sat by the river", "PRON VERB ADP DET NOUN")]

        def sentence(text, tags):
            made = Sentence(text.split())
            for token, tag in zip(made, tags.split(), strict=True):
                token.add_label("pos", tag)
            return made

        data = FlairDatapointDataset([sentence(*pair) for pair in tagged])
        corpus = Corpus(train=data, dev=data, test=data, sample_missing_splits=False)
        torch.manual_seed(0)
        tagger = SequenceTagger(
            embeddings=embeddings(embedding_mode=mode),
            tag_dictionary=corpus.make_label_dictionary("pos", add_unk=False),
            tag_type="pos",
            hidden_size=16,
            use_crf=False,
            dropout=0.0,
            word_dropout=0.0,
            locked_dropout=0.0,
        )
        ModelTrainer(tagger, corpus).fine_tune(tmp_path / "run", learning_rate=0.05, max_epochs=40, mini_batch_size=2)
        read = SequenceTagger.load(tmp_path / "run" / "final-model.pt")
        for text, tags in tagged:
            fresh = Sentence(text.split())
            read.predict(fresh)
            assert [token.get_label("pos").value for token in fresh] == tags.split()

    def test_the_page_prints_what_it_says(self):
        report = doctest.testfile(str(ROOT / "docs" / "flair.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
        assert report.attempted > 8
        assert report.failed == 0

    @pytest.mark.filterwarnings("ignore:.*GradScaler:FutureWarning")
    def test_the_example_learns_more_with_elmo(self, capsys):
        runpy.run_path(str(ROOT / "examples" / "flair_tagger.py"))["main"]([])
        without, with_elmo = (float(line.split("%")[0]) for line in capsys.readouterr().out.strip().splitlines()[-2:])
        assert with_elmo > without
