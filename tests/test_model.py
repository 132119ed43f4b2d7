"""ELMo: from sentences to vectors, alone and inside a user's network."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import reference
from elmokit import BiLM, BiLMConfig, ELMo, batch_to_ids, kernels
from elmokit.inference import runner
from elmokit.network import OutputLayer, lstm
from elmokit.network.int8 import quantized
from elmokit.text import Lexicon, Tokenizer, Vocabulary

SENTENCES = [
    ["The", "bank", "lent", "money", "."],
    ["Rain"],
    [],
    ["He", "sat", "by", "the", "river", "bank,", "didn't", "he?"],
    ["naïve", "漢字", "🙂", "", "x" * 10_000, "\x00\x01", "\ud800"],
]


def tiny(**settings):
    torch.manual_seed(0)
    config = BiLMConfig(
        char_dim=4, filters=((1, 4), (2, 6), (3, 6)), num_highways=1, cell_dim=24, projection_dim=10, num_layers=2
    )
    return ELMo(BiLM(config), **settings).eval()


@pytest.fixture
def loaded(official_model):
    files = official_model()
    return files, ELMo.from_files(files.options_path, files.weights_path)


def random_sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 12)))) for _ in range(300)]
    return [list(rng.choice(words, rng.integers(0, 30))) for _ in range(count)]


def assert_same(left, right, atol=1e-6):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


def test_embedding_equals_the_reference_for_every_choice_of_layers(loaded):
    files, model = loaded
    expected = [files.expected(sentence).layers for sentence in SENTENCES]
    for layers, choose in {
        "all": lambda x: x,
        "top": lambda x: x[-1],
        "average": lambda x: x.mean(0),
        0: lambda x: x[0],
        1: lambda x: x[1],
    }.items():
        assert_same(model.embed(SENTENCES, layers=layers), [choose(x) for x in expected], atol=1e-5)


def test_strings_are_tokenized_and_token_lists_taken_as_they_are():
    model = tiny()
    assert_same(model.embed(["The bank didn't."]), model.embed([["The", "bank", "did", "n't", "."]]))
    assert len(model.embed([["The bank didn't."]])[0]) == 1


def test_a_sentence_embeds_the_same_alone_and_in_any_batch_and_order():
    model, sentences = tiny(), random_sentences(60)
    together = model.embed(sentences, layers="all")
    assert_same([model.embed([sentence], layers="all")[0] for sentence in sentences], together)
    order = np.random.default_rng(1).permutation(len(sentences))
    shuffled = model.embed([sentences[place] for place in order], layers="all")
    assert_same(shuffled, [together[place] for place in order])
    assert_same(model.embed(sentences, layers="all", batch_size=7), together)
    assert_same(model.embed(sentences, layers="all"), together)


def test_a_thousand_sentences_from_four_threads_equal_one_thread():
    model, sentences = tiny(), random_sentences(1000)
    alone = model.embed(sentences)
    fresh = copy.deepcopy(model)
    parts = [sentences[start::4] for start in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for start, result in enumerate(pool.map(fresh.embed, parts)):
            assert_same(result, alone[start::4])


def test_windows_of_sentences_change_nothing(monkeypatch):
    model, sentences = tiny(), random_sentences(50)
    whole = model.embed(sentences)
    monkeypatch.setattr(runner, "SENTENCES_AT_ONCE", 7)
    monkeypatch.setitem(runner.TOKENS_AT_ONCE, "cpu", 40)
    assert_same(model.embed(sentences), whole)


def test_a_long_document_runs_in_blocks_of_bounded_size(monkeypatch):
    model = tiny()
    document = [word for sentence in random_sentences(1500) for word in sentence][:20_000]
    whole = model.embed([document])[0]
    assert whole.shape == (20_000, 20)
    sizes = []
    engine = kernels.choose(torch.zeros(1))

    class Spy:
        def lstm(self, inputs, lengths, weights, *args, **kwargs):
            sizes.append(inputs[..., 0].numel() * weights.bias.shape[-1])
            return engine.lstm(inputs, lengths, weights, *args, **kwargs)

    monkeypatch.setattr(kernels, "choose", lambda inputs: Spy())
    monkeypatch.setitem(lstm.GATES_AT_ONCE, "cpu", 200_000)
    in_blocks = model.embed([document])[0]
    assert max(sizes) <= 200_000 < sum(sizes)
    np.testing.assert_allclose(in_blocks, whole, atol=1e-6)


def test_sentence_vectors_are_the_mean_over_tokens_and_zeros_for_an_empty_sentence():
    model = tiny()
    vectors = model.encode(SENTENCES)
    for vector, tokens in zip(vectors, model.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(vector, tokens.mean(0) if len(tokens) else 0 * vector, atol=1e-6)
    unit = model.encode(["A bank .", "Rain"], normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert model.encode("Rain").shape == (20,)
    assert model.encode([]).shape == (0, 20)
    assert isinstance(model.encode(["Rain"], convert_to_tensor=True), torch.Tensor)
    assert isinstance(model.embed(["Rain"], convert_to_tensor=True)[0], torch.Tensor)
    np.testing.assert_allclose(model.encode(["Rain"], layers=0)[0], model.embed(["Rain"], layers=0)[0][0], atol=1e-6)


def test_similarity_is_the_cosine_of_the_word_in_its_two_sentences():
    model = tiny()
    first, second = "The bank lent money .", "He sat by the Bank"
    a, b = model.embed([first], layers=2)[0][1], model.embed([second], layers=2)[0][4]
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert model.similarity(first, second, word="bank", layers=2) == pytest.approx(expected, abs=1e-6)
    assert model.similarity(first, first) == pytest.approx(1, abs=1e-6)
    assert model.similarity("", "") == 0
    with pytest.raises(ValueError, match=r"'cat' is not in the sentence; its tokens are \['The'"):
        model.similarity(first, second, word="cat")


def test_carried_state_gives_the_published_behaviour_and_can_be_reset(official_model):
    files = official_model(seed=3)
    model = ELMo.from_files(files.options_path, files.weights_path, state="carry")
    batches = [[["a", "b", "c"], ["d"]], [["e", "f"]], [["g"], ["h", "i"]]]
    states = [None, None]
    for batch in batches:  # the second batch has one row: row 1 keeps its state
        got = model.embed(batch, layers="all")
        for row, sentence in enumerate(batch):
            run = files.expected(sentence, states[row])
            states[row] = run.state
            np.testing.assert_allclose(got[row], run.layers, atol=1e-5)
    model.reset_state()
    np.testing.assert_allclose(model.embed([["a"]], layers="all")[0], files.expected(["a"]).layers, atol=1e-5)
    model.reset_state()
    output = model(files.ids([["a"]]))
    again = model(files.ids([["a"]]))
    assert not torch.allclose(output.layers, again.layers)
    np.testing.assert_allclose(
        again.layers[:, 0].numpy(), files.expected(["a"], files.expected(["a"]).state).layers, atol=1e-5
    )


def test_a_batch_beyond_memory_is_split_until_it_fits(monkeypatch):
    model, sentences = tiny(), random_sentences(20)
    whole = model.embed(sentences)
    run = BiLM.contextualize

    def short_of_memory(self, tokens, lengths, **settings):
        if len(lengths) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, tokens, lengths, **settings)

    monkeypatch.setattr(BiLM, "contextualize", short_of_memory)
    assert_same(model.embed(sentences), whole)

    def broken(self, *_, **__):
        raise RuntimeError("another fault")

    monkeypatch.setattr(BiLM, "contextualize", broken)
    with pytest.raises(RuntimeError, match="another fault"):
        model.embed(sentences)


def test_as_a_module_it_gives_mixes_mask_and_layers(loaded):
    files, _ = loaded
    model = ELMo.from_files(files.options_path, files.weights_path, num_mixes=2, dropout=0.0)
    torch.nn.init.normal_(model.mixes[1].weights)
    torch.nn.init.constant_(model.mixes[1].gamma, 1.7)
    sentences = SENTENCES[:4]
    output = model(batch_to_ids(sentences))
    assert len(output.mixes) == 2
    assert output.mask.sum(1).tolist() == [5, 1, 0, 8]
    for row, sentence in enumerate(sentences):
        layers = files.expected(sentence).layers
        for mix, mixed in zip(model.mixes, output.mixes, strict=True):
            weights, gamma = mix.weights.detach().double().numpy(), float(mix.gamma.detach())
            share = np.exp(weights) / np.exp(weights).sum()
            expected = gamma * np.einsum("l,ltp->tp", share, layers)
            np.testing.assert_allclose(mixed[row, : len(sentence)].detach().numpy(), expected, atol=1e-5)
            assert not mixed[row, len(sentence) :].any()
    assert float(model.mix_l2().detach()) == pytest.approx(float((model.mixes[1].weights.detach() ** 2).sum()))


def test_layer_norm_counts_the_boundary_tokens_as_published(loaded):
    files, _ = loaded
    model = ELMo.from_files(files.options_path, files.weights_path, layer_norm=True)
    sentences = SENTENCES[:4]
    width = max(map(len, sentences)) + 2
    runs = [files.expected(sentence).with_boundaries for sentence in sentences]
    layers = np.stack([np.pad(run, ((0, 0), (0, width - run.shape[1]), (0, 0))) for run in runs], axis=1)
    mask = np.array([[place < len(sentence) + 2 for place in range(width)] for sentence in sentences])
    expected = reference.scalar_mix(layers, mask, np.zeros(len(layers)), 1.0, True, 1e-13)
    mixed = model(batch_to_ids(sentences)).mixes[0].detach().numpy()
    for row, sentence in enumerate(sentences):
        end = len(sentence)
        np.testing.assert_allclose(mixed[row, :end], expected[row, 1 : end + 1], atol=1e-5)
        assert not mixed[row, end:].any()


def test_boundary_tokens_are_kept_where_asked(loaded):
    files, _ = loaded
    model = ELMo.from_files(files.options_path, files.weights_path, keep_boundaries=True)
    output = model(batch_to_ids([["a", "b"]]))
    np.testing.assert_allclose(output.layers[:, 0], files.expected(["a", "b"]).with_boundaries, atol=1e-5)
    assert output.mask.tolist() == [[True] * 4]
    assert output.mixes[0].shape[1] == 4


def test_a_frozen_model_trains_its_mixes_alone_and_an_open_one_the_bilm_too(tmp_path):
    ids = batch_to_ids([["a", "bank"], ["b"]])
    frozen = tiny()
    frozen(ids).mixes[0].sum().backward()
    assert frozen.mixes[0].gamma.grad is not None
    assert all(p.grad is None and not p.requires_grad for p in frozen.bilm.parameters())

    model = tiny(freeze=False, num_mixes=2).train()
    before = model.embed(["a bank"])[0]
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    out = model(ids)
    (sum(mixed.pow(2).sum() for mixed in out.mixes) + 0.1 * model.mix_l2()).backward()
    optimizer.step()
    model.eval()
    after = model.embed(["a bank"])[0]
    assert np.abs(after - before).max() > 1e-3
    model.save_pretrained(tmp_path / "tuned")
    again = ELMo.from_pretrained(tmp_path / "tuned")
    np.testing.assert_allclose(again.embed(["a bank"])[0], after, atol=1e-6)
    assert len(again.mixes) == 2
    for saved, mix in zip(again.mixes, model.mixes, strict=True):
        assert torch.equal(saved.weights, mix.weights)
        assert torch.equal(saved.gamma, mix.gamma)
    assert len(ELMo.from_pretrained(tmp_path / "tuned", num_mixes=1).mixes) == 1


def test_dropout_acts_in_training_alone():
    model, ids = tiny(dropout=0.5), batch_to_ids([["a", "b", "c", "d"]])
    quiet = model(ids).mixes[0]
    assert torch.equal(quiet, model(ids).mixes[0])
    noisy = model.train()(ids).mixes[0]
    assert (noisy == 0).float().mean() > 0.2


def test_a_word_level_model_reads_words_by_its_vocabulary(official_model, tmp_path):
    files = official_model(seed=5, word_level=True)
    path = tmp_path / "vocabulary.txt"
    path.write_text("".join(word + "\n" for word in files.vocabulary), encoding="utf-8")
    model = ELMo.from_files(files.options_path, files.weights_path, vocabulary=path)
    sentence = [files.vocabulary[-1], "a word that nobody knows", files.vocabulary[4]]
    np.testing.assert_allclose(model.embed([sentence], layers="all")[0], files.expected(sentence).layers, atol=1e-5)
    np.testing.assert_allclose(model(model.to_ids([sentence])).layers[:, 0], files.expected(sentence).layers, atol=1e-5)
    model.save_pretrained(tmp_path / "mine")
    again = ELMo.from_pretrained(tmp_path / "mine")
    np.testing.assert_allclose(again.embed([sentence])[0], model.embed([sentence])[0])
    with pytest.raises(ValueError, match="needs its vocabulary: it is missing"):
        ELMo.from_files(files.options_path, files.weights_path)


def test_ids_of_sentences_are_those_of_batch_to_ids():
    model = tiny()
    assert torch.equal(model.to_ids(SENTENCES), batch_to_ids(SENTENCES))
    assert model.to_ids([]).shape == (0, 0, 50)


def test_models_of_a_python_list_are_refused_before_the_depths():
    with pytest.raises(ValueError, match="batch_to_ids"):
        tiny()([["The", "bank"]])


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("The bank .", "one string"),
        (None, "None"),
        (3, "3"),
        (b"bytes", "bytes"),
        ([b"bytes"], "sentences"),
        ([None], r"sentences\[0\]"),
        ([["a"], ["b", 3]], r"sentences\[1\]\[1\]"),
        ([["a", ["b"]]], r"sentences\[0\]\[1\]"),
        ([float("nan")], r"sentences\[0\]"),
    ],
)
def test_what_is_no_list_of_sentences_is_a_clear_error(sentences, message):
    for method in (tiny().embed, tiny().encode if not isinstance(sentences, str) else tiny().embed):
        with pytest.raises(ValueError, match=message):
            method(sentences)


def test_an_empty_list_gives_an_empty_list():
    assert tiny().embed([]) == []


@pytest.mark.parametrize("layers", ["bottom", 3, -4, True, 1.0, None])
def test_unknown_layers_are_named(layers):
    with pytest.raises(ValueError, match="layers must be"):
        tiny().embed(["a"], layers=layers)


def test_settings_that_cannot_be_are_named():
    model = tiny()
    with pytest.raises(ValueError, match="num_mixes"):
        tiny(num_mixes=-1)
    with pytest.raises(ValueError, match='state must be "stateless" or "carry", not \'yes\''):
        tiny(state="yes")
    with pytest.raises(ValueError, match='state must be "stateless" or "carry", not '):
        model.state = np.array(["carry", "stateless"])
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        model.embed(["a"], batch_size=0)
    with pytest.raises(ValueError, match="embed"):
        model.encode(["a"], layers="all")
    with pytest.raises(ValueError, match="embed"):
        model.similarity("a", "a", word="a", layers="all")


def test_a_model_without_output_layer_says_so():
    for ask in (
        lambda m: m.log_probs(["a"]),
        lambda m: m.perplexity(["a"]),
        lambda m: m.substitutes("a [b]"),
    ):
        with pytest.raises(ValueError, match="no output layer"):
            ask(tiny())


def language_model(state="stateless"):
    words = ["<S>", "</S>", "<UNK>", "the", "bank", "river", "money", "."]
    base = tiny()
    torch.manual_seed(1)
    output = OutputLayer(len(words), 10)
    return ELMo(base.bilm, output_layer=output, vocabulary=Vocabulary(words), state=state).eval()


def test_the_language_model_saves_loads_and_exports(tmp_path):
    model = language_model()
    sentence = ["the bank ."]
    expected = model.perplexity(sentence)
    model.save_pretrained(tmp_path / "lm")
    assert ELMo.from_pretrained(tmp_path / "lm").perplexity(sentence) == expected
    model.export_hdf5(tmp_path / "official")
    names = ["options.json", "weights.hdf5"]
    again = ELMo.from_files(
        *(tmp_path / "official" / name for name in names),
        softmax=tmp_path / "official" / "softmax.hdf5",
        vocabulary=tmp_path / "official" / "vocabulary.txt",
    )
    assert again.perplexity(sentence) == expected
    with pytest.raises(ValueError, match="needs the vocabulary"):
        ELMo.from_files(
            *(tmp_path / "official" / name for name in names), softmax=tmp_path / "official" / "softmax.hdf5"
        )
    (tmp_path / "short.txt").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(ValueError, match="has 8 rows"):
        ELMo.from_files(
            *(tmp_path / "official" / name for name in names),
            softmax=tmp_path / "official" / "softmax.hdf5",
            vocabulary=tmp_path / "short.txt",
        )


@pytest.mark.parametrize(("dtype", "nats"), [("float32", 0.0), ("float16", 0.002), ("int8", 0.04)])
def test_log_probs_of_a_stored_model_move_by_little(tmp_path, dtype, nats):
    model = language_model()
    with torch.no_grad():
        model.output_layer.weight *= 30.0  # away from an even guess, where nothing could move
    model.save_pretrained(tmp_path / "lm", dtype=dtype)
    loaded = ELMo.from_pretrained(tmp_path / "lm")
    sentences = random_sentences(20)
    scores = [
        np.concatenate([np.r_[s.forward, s.backward, s.forward_end, s.backward_end] for s in elmo.log_probs(sentences)])
        for elmo in (model, loaded)
    ]
    assert np.ptp(scores[0]) > 1.0
    assert np.abs(scores[0] - scores[1]).max() <= nats


def test_loading_a_language_model_draws_no_random_number(tmp_path):
    language_model().save_pretrained(tmp_path / "lm")
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ELMo.from_pretrained(tmp_path / "lm")
    assert torch.equal(torch.rand(3), expected)


def test_loading_a_language_model_imports_nothing_of_the_compiler(tmp_path):
    """An initial value drawn on the meta device does, which takes longer than all the rest."""
    language_model().save_pretrained(tmp_path / "lm", dtype="int8")
    code = f"import sys; from elmokit import ELMo; ELMo.from_pretrained({str(tmp_path / 'lm')!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "elmokit.model" in done.stdout.split()
    assert "torch._dynamo" not in done.stdout.split()


def test_log_probs_stay_away_from_the_carried_state():
    carrying = language_model(state="carry")
    carrying.embed(["the river bank ."])
    assert carrying.perplexity(["the bank ."]) == language_model().perplexity(["the bank ."])


def test_substitutes_want_one_marked_word():
    model = language_model()
    assert len(model.substitutes("the [bank] .", k=3)) == 3
    for sentence in ("the bank .", "the [bank] [.]"):
        with pytest.raises(ValueError, match="mark one word with brackets"):
            model.substitutes(sentence)


def test_a_model_survives_copying_and_pickling():
    model = tiny()
    vectors = model.embed(["The bank ."])
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(twin.embed(["The bank ."]), vectors)


def test_half_precision_is_close_and_bfloat16_never_kills_the_process(monkeypatch):
    model = tiny()
    exact = model.embed(["The bank lent money ."])[0]
    half = copy.deepcopy(model).half().embed(["The bank lent money ."])[0]
    assert half.dtype == np.float32
    wide = copy.deepcopy(model).double()
    assert wide.embed(["The bank lent money ."])[0].dtype == wide.encode(["The bank ."]).dtype == np.float64
    np.testing.assert_allclose(half, exact, atol=0.02)
    monkeypatch.setattr(kernels, "bfloat16_works", lambda: False)
    with pytest.raises(ValueError, match="bfloat16 products crash on this CPU"):
        model.bfloat16().embed(["The bank ."])


def test_bfloat16_is_tried_in_a_process_of_its_own(monkeypatch):
    asked = []

    class Answer:
        returncode = -4

    monkeypatch.setattr(kernels.subprocess, "run", lambda command, **_: asked.append(command) or Answer)
    kernels.bfloat16_works.cache_clear()
    try:
        assert not kernels.bfloat16_works()
        assert not kernels.bfloat16_works()
    finally:
        kernels.bfloat16_works.cache_clear()
    assert len(asked) == 1
    assert "bfloat16" in asked[0][-1]


def test_int8_weights_stay_close_and_cannot_be_saved(official_model, tmp_path):
    files = official_model(seed=2)
    exact = ELMo.from_files(files.options_path, files.weights_path)
    rounded = ELMo.from_files(files.options_path, files.weights_path, quantize="int8")
    sentences = random_sentences(30)
    for a, b in zip(exact.embed(sentences, layers="all"), rounded.embed(sentences, layers="all"), strict=True):
        cosines = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
        assert (cosines > 0.995).all()
    assert_same([rounded.embed([s])[0] for s in sentences], rounded.embed(sentences))
    assert sum(p.numel() for p in rounded.bilm.parameters()) < sum(p.numel() for p in exact.bilm.parameters()) / 2
    for write in (rounded.save_pretrained, rounded.export_hdf5):
        with pytest.raises(ValueError, match="without quantize"):
            write(tmp_path / "out")
    for wrong in (
        {"quantize": "int4"},
        {"quantize": np.array([])},
        {"quantize": "int8", "dtype": torch.float16},
        {"quantize": "int8", "freeze": False},
    ):
        with pytest.raises(ValueError, match=r'quantize (must be|is) "int8" or None'):
            ELMo.from_files(files.options_path, files.weights_path, **wrong)
    with pytest.raises(ValueError, match="int8 weights run on a CPU"):
        quantized(BiLM(exact.config).to("meta"))


def test_words_are_read_once_and_again_when_the_weights_change(monkeypatch):
    def decode(ids):
        return ["".join(chr(i - 1) for i in row if i <= 256) or int(row[1]) - 1 for row in ids.tolist()]

    model = tiny()
    asked = []
    embed = model.bilm.embed_words
    monkeypatch.setattr(model.bilm, "embed_words", lambda ids: asked.extend(decode(ids)) or embed(ids))
    first = model.embed(["the bank the bank"])[0]
    model.embed(["the bank"])
    assert asked == [256, 257, "the", "bank"]  # the boundaries first
    with torch.no_grad():
        model.bilm.char_encoder.char_embedding.mul_(2)
    assert np.abs(model.embed(["the bank the bank"])[0] - first).max() > 1e-4
    assert len(asked) == 8


def test_progress_is_shown_where_asked(capsys):
    tiny().embed(["a", "b"], show_progress=True)
    assert "sentences" in capsys.readouterr().err


def test_a_tokenizer_that_is_set_later_cuts_every_string():
    model, characters = tiny(), tiny(tokenizer="characters")
    model.tokenizer = Tokenizer("characters")
    assert_same(model.embed(["the bank"]), characters.embed(["the bank"]))
    assert model.to_ids(["the bank"]).shape[1] == len("thebank")
    assert model.digest() == characters.digest()


# ---- the digest ------------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_all_that_makes_the_vectors():
    def words(*known):
        torch.manual_seed(0)
        bilm = BiLM(BiLMConfig(num_words=4, cell_dim=16, projection_dim=8, num_layers=1))
        return ELMo(bilm, vocabulary=Vocabulary(["<S>", "</S>", "<UNK>", *known]))

    def spelled(*characters):
        torch.manual_seed(0)
        config = BiLMConfig(num_lexicon_characters=2, filters=((1, 4),), cell_dim=16, projection_dim=8, num_layers=1)
        return ELMo(BiLM(config), lexicon=Lexicon(characters))

    changed = tiny()
    with torch.no_grad():
        next(changed.bilm.layers[1].parameters()).view(-1)[0] += 1
    other = copy.deepcopy(changed)
    for model in (rounded := tiny()), changed:
        model.bilm = quantized(model.bilm)
    different = [
        tiny(),
        tiny(tokenizer="spaces"),
        tiny(tokenizer="characters"),
        tiny().double(),
        other,
        rounded,
        changed,
        words("bank"),
        words("river"),
        spelled(*"ab"),
        spelled(*"ba"),
    ]
    assert len({model.digest() for model in different}) == len(different)
    assert tiny().digest() == tiny().digest() == tiny(num_mixes=2).digest()
    again = tiny()
    again.bilm = quantized(again.bilm)
    assert again.digest() == rounded.digest()
