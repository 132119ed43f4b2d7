"""Batches by length, the cache of word vectors, changes of the weights, and the vectors of each sentence."""

import numpy as np
import pytest
import torch

from elmokit import ELMo
from elmokit.config import BiLMConfig
from elmokit.inference.batches import STEP_ROWS, Batch, plan
from elmokit.inference.rows import packed_copies
from elmokit.inference.weights_watch import Look, WeightsWatch
from elmokit.inference.word_cache import WordCache
from elmokit.network import BiLM


def test_the_word_cache_is_bounded_and_forgets_what_was_not_used_lately():
    asked = []

    def embed(words):
        asked.extend(words)
        return torch.tensor([[float(word)] for word in words])

    cache = WordCache(10)

    def look_up(*numbers):
        slots, table = cache.lookup([str(n) for n in numbers], embed, "k")
        return table[torch.from_numpy(slots)].flatten().tolist()

    assert look_up(*range(8)) == list(range(8))
    assert look_up(0, 1) == [0, 1]
    assert look_up(20, 0, 21, 22, 20) == [20, 0, 21, 22, 20]  # eleven words: five stay
    asked.clear()
    assert look_up(0, 22, 21, 20, 1) == [0, 22, 21, 20, 1]
    assert asked == []
    assert look_up(5, 2, 3, 4, 6, 7, 8) == [5, 2, 3, 4, 6, 7, 8]
    assert look_up(*range(100, 150)) == list(range(100, 150))  # more than fit: the call is still right
    assert look_up(149, 3) == [149, 3]
    assert len(cache._slots) <= 10


def test_words_whose_vectors_could_not_be_made_are_not_taken_for_known():
    def embed(words):
        if "bad" in words:
            raise RuntimeError("no memory")
        return torch.ones(len(words), 1)

    cache = WordCache(10)
    cache.lookup(["a"], embed, "k")
    with pytest.raises(RuntimeError, match="no memory"):
        cache.lookup(["a", "bad"], embed, "k")
    with pytest.raises(RuntimeError, match="no memory"):
        cache.lookup(["bad"], embed, "k")
    assert cache.lookup(["a", "b"], embed, "k")[1][:2].shape == (2, 1)


def test_batches_go_by_length_within_the_budget():
    sentences = [["w"] * length for length in (3, 9, 1, 9, 4)]
    batches = plan(sentences, 100, budget=22, batch_size=None)
    assert batches[0] == Batch([101, 103], [sentences[1], sentences[3]])
    assert [batch.positions for batch in batches[1:]] == [[104, 100, 102]]
    assert [batch.positions for batch in plan(sentences, 0, budget=22, batch_size=1)] == [[1], [3], [4], [0], [2]]
    assert [batch.positions for batch in plan(sentences, 0, budget=None, batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert [b.positions for b in plan([["w"] * 99], 0, budget=5, batch_size=None)] == [[0]]


def test_a_wrong_token_is_named_also_in_a_later_batch():
    bilm = BiLM(BiLMConfig(filters=((1, 4),), num_highways=1, cell_dim=8, projection_dim=4))
    sentences = [["a"], ["b", "c", "d"], ["e", 5]]
    with pytest.raises(ValueError, match=r"sentences\[2\]\[1\] is 5 \(int\): expected a token"):
        ELMo(bilm).embed(sentences, batch_size=1)
    one, other = ELMo(bilm).embed([["b", "c"], [np.str_("a")]], batch_size=1)
    assert (len(one), len(other)) == (2, 1)


def test_a_batch_ends_where_two_batches_take_less_time():
    lengths = np.random.default_rng(0).lognormal(3.0, 0.6, 3000).astype(int)
    batches = plan([["w"] * length for length in lengths], 0, budget=65536, batch_size=1024)
    assert sorted(place for batch in batches for place in batch.positions) == list(range(3000))

    def cost(batches):
        """Row-steps, with those that a step takes beside its rows."""
        return sum((max(batch) + 2) * (STEP_ROWS + len(batch)) for batch in batches)

    ordered, sizes = sorted(lengths, reverse=True), []
    for batch in batches:
        begin, whole = sum(sizes), min(1024, 65536 // (max(batch.lengths) + 2))
        candidates = ordered[begin : begin + whole]
        cuts = [cost([candidates])] + [cost([candidates[:k], candidates[k:]]) for k in range(1, len(candidates))]
        sizes.append(int(np.argmin(cuts)) or len(candidates))
    assert [len(batch.tokens) for batch in batches] == sizes
    assert len(set(sizes)) > 3
    few = plan([["w"] * length for length in (50, 3, 3)], 0, budget=65536, batch_size=None)
    assert len(few) == 1  # few rows are computed as fast as one


@pytest.mark.parametrize("shape", [(4,), (2, 5), (3, 9, 4)], ids=str)
def test_a_batch_packed_and_split_is_each_sentence_without_padding(shape):
    """The path of a GPU, in its parts: the order of the packed tokens, and memory of its own for each sentence."""
    lengths = [5, 3, 3, 1, 3, 0]
    rows = torch.randn(*shape[:-1], len(lengths), 6, shape[-1])
    parts = packed_copies(rows, lengths)
    for number, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        assert torch.equal(part, rows[..., number, :length, :])
        assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


def test_no_sentence_of_a_batch_has_a_token():
    assert [tuple(part.shape) for part in packed_copies(torch.zeros(3, 2, 0, 4), [0, 0])] == [(3, 0, 4)] * 2


@pytest.mark.parametrize("what", ["counted", "hidden", "hidden, with gaps", "NaN", "replaced"])
def test_a_change_of_the_weights_gives_a_new_key(what):
    bilm = BiLM(BiLMConfig(filters=((1, 4),), num_highways=1, cell_dim=8, projection_dim=4))
    weight = bilm.char_encoder.projection.weight
    if what == "hidden, with gaps":
        weight.data = weight.data.t().contiguous().t()
        assert not weight.is_contiguous()
    watch = WeightsWatch()
    before = watch.look(bilm).key
    assert watch.look(bilm).key == before
    with torch.no_grad():
        if what == "counted":
            weight.mul_(2)
        elif what == "replaced":
            bilm.char_encoder.projection.weight = torch.nn.Parameter(weight.clone())
        elif what == "NaN":
            weight.data.fill_(float("nan"))
        else:
            weight.data[2] += 1
    after = watch.look(bilm)
    assert after.key != before
    assert not after.has_changed()
    assert watch.look(bilm).key == after.key


def test_a_batch_is_computed_again_if_a_late_answer_says_that_the_weights_have_changed(monkeypatch):
    """As on a GPU, whose answer comes after the first batch was computed with the vectors of old weights."""

    class Late:
        def __init__(self, samples, before):
            self.samples, self.differs = samples, not torch.equal(samples, before)

        def begin(self):
            begun.append(self.differs)

        def is_same(self):
            asked.append(self.differs)
            return not self.differs

    asked, begun = [], []
    torch.manual_seed(0)
    bilm = BiLM(BiLMConfig(filters=((1, 4),), num_highways=1, cell_dim=8, projection_dim=4))
    model, sentences = ELMo(bilm).eval(), ["the bank", "a river bank", "rain"]
    model.embed(sentences)
    look = WeightsWatch.look

    def late(self, bilm):
        before, key = self._samples, self._generation
        self.look_now = look(self, bilm)
        samples, self._samples = self._samples, before
        return Look(self, key, Late(samples, before))

    monkeypatch.setattr(WeightsWatch, "look", late)
    same = model.embed(sentences, batch_size=1)
    assert asked == [False]  # once per call
    assert begun == [False]
    model.embed(sentences[:1])
    assert asked == [False] * 2
    assert begun == [False]  # one sentence alone does not wait for it
    bilm.char_encoder.projection.weight.data.mul_(3)
    changed = model.embed(sentences, batch_size=1)
    model.forget_words()
    for old, new, fresh in zip(same, changed, model.embed(sentences), strict=True):
        assert abs(old - fresh).max() > 1e-4
        np.testing.assert_allclose(new, fresh, atol=1e-6)
    carrying = ELMo(bilm, state="carry").eval()
    carrying.embed(sentences)
    carrying.reset_state()
    bilm.char_encoder.projection.weight.data.mul_(3)
    changed = carrying.embed(sentences, batch_size=1)
    fresh = ELMo(bilm, state="carry").eval().embed(sentences, batch_size=1)
    for one, other in zip(changed, fresh, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.gpu
def test_on_a_gpu_vectors_are_those_of_a_cpu_and_a_hidden_change_of_the_weights_is_noticed():
    torch.manual_seed(0)
    bilm = BiLM(BiLMConfig(filters=((1, 4), (3, 8)), num_highways=1, cell_dim=32, projection_dim=16))
    model, sentences = ELMo(bilm).eval(), ["the bank", "", "a river bank by the sea", "rain"]
    for factor in (1.0, 3.0):  # the second time after a write through .data
        bilm.char_encoder.projection.weight.data.mul_(factor)
        expected = model.cpu().embed(sentences, layers="all")
        found = model.cuda().embed(sentences, layers="all", convert_to_tensor=True)
        bilm.char_encoder.projection.weight.data.mul_(2.0)  # seen by no counter
        doubled = model.embed(sentences, layers="all", convert_to_tensor=True)
        bilm.char_encoder.projection.weight.data.mul_(0.5)
        again = model.embed(sentences, layers="all", convert_to_tensor=True)
        for one, other, third, fourth in zip(expected, found, doubled, again, strict=True):
            np.testing.assert_allclose(other.cpu(), one, atol=1e-4)
            np.testing.assert_allclose(fourth.cpu(), one, atol=1e-4)
            assert not len(one[0]) or (third - other).abs().max() > 1e-4
            assert other.untyped_storage().nbytes() == other.numel() * other.element_size()
        bilm.char_encoder.projection.weight.data.mul_(2.0)
        (alone,) = model.embed(sentences[2:3], layers="all", convert_to_tensor=True)  # compared beside the batch
        np.testing.assert_allclose(alone.cpu(), doubled[2].cpu(), atol=1e-4)
        bilm.char_encoder.projection.weight.data.mul_(0.5)
