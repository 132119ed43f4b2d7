"""vocab, prepare, pretrain, finetune: from text to a model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from verbs import LINES, error_of, result_of, run

from elmokit.cli import main
from elmokit.model import ELMo
from elmokit.text import tokenize


def test_vocab_counts_the_words_of_all_files(text, tmp_path):
    (tmp_path / "more.txt").write_text("bank bank\nHe\n")
    arguments = ["vocab", text, tmp_path / "more.txt", "-o", tmp_path / "words.txt", "--size", 5]
    assert result_of(*arguments)["words"] == 5
    assert (tmp_path / "words.txt").read_text().split() == ["<S>", "</S>", "<UNK>", "bank", "He"]
    assert "words.txt already exists" in error_of(*arguments)
    assert "5 words" in run(*arguments, "--overwrite").stdout
    run("vocab", text, "-o", tmp_path / "often.txt", "--tokenized", "--min-count", 2)
    assert "river," not in (tmp_path / "often.txt").read_text().split()


def test_vocab_says_in_one_line_what_is_wrong(text, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert "there is no word" in error_of("vocab", tmp_path / "empty.txt", "-o", tmp_path / "v.txt")
    assert "no such file" in error_of("vocab", tmp_path / "nothing.txt", "-o", tmp_path / "v.txt")
    assert "there is no folder" in error_of("vocab", text, "-o", text / "v.txt")
    assert "/dev/full is not a regular file" in error_of("vocab", text, "-o", "/dev/full", "--overwrite")
    assert not (tmp_path / "v.txt").exists()


@pytest.mark.parametrize("verb", ["vocab", "prepare"])
@pytest.mark.parametrize("options", [("--han", "--characters"), ("--tokenized", "--han")])
def test_ways_to_split_text_that_exclude_each_other_are_wrong_usage(verb, options, text, tmp_path):
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\nbank\n")
    vocabulary = ("--vocabulary", tmp_path / "words.txt") if verb == "prepare" else ()
    arguments = [verb, text, "-o", tmp_path / "out", *vocabulary, *options]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 2
    assert "--tokenized, --characters and --han exclude each other" in result.stderr
    assert not (tmp_path / "out").exists()


def test_prepare_writes_a_corpus_and_counts_it(text, tmp_path):
    run("vocab", text, "-o", tmp_path / "words.txt")
    arguments = ["prepare", text, "-o", tmp_path / "corpus", "--vocabulary", tmp_path / "words.txt"]
    result = result_of(*arguments)
    assert (result["sentences"], result["documents"], result["replaced_lines"]) == (4, 2, 0)
    assert result["tokens"] == sum(len(tokenize(line)) for line in LINES)
    assert "4 sentences" in run(*arguments).stdout  # what is there is not made again
    text.write_text("changed\n")
    assert "holds a corpus of other text" in error_of(*arguments)
    assert "words: No such file" in error_of(*arguments[:-1], "words")


def test_one_of_a_kind_is_said_in_the_singular(tmp_path):
    text, words = tmp_path / "text.txt", tmp_path / "words.txt"
    text.write_text("bank\n", encoding="utf-8")
    assert run("vocab", text, "-o", words).stdout == f"{words}: 4 words\n"
    made = run("prepare", text, "-o", tmp_path / "corpus", "--vocabulary", words).stdout
    assert made == f"{tmp_path / 'corpus'}: 1 token, 1 sentence, 1 document\n"


RECIPE = """
train = "{text}"
heldout = "{text}"
out = "{out}"
batch_size = 4
unroll = 5
steps = 6
log_every = 2
eval_every = 3
loss = "full"
tensorboard = false
[model]
char_dim = 3
filters = [[1, 2], [2, 3]]
num_highways = 1
cell_dim = 7
projection_dim = 5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    words = ["the", "bank", "river", "money", "sat", "lent"]
    rng = np.random.default_rng(6)
    (tmp_path / "train.txt").write_text("".join(" ".join(rng.choice(words, 5)) + " .\n" for _ in range(40)))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(text=tmp_path / "train.txt", out=tmp_path / "run"))
    return path


def test_pretrain_runs_a_recipe_and_leaves_a_language_model(recipe, tmp_path):
    result = CliRunner().invoke(main, ["pretrain", str(recipe), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["step"], found["num_steps"], found["ended"]) == (6, 6, "steps")
    assert found["folder"] == str(tmp_path / "run")
    reports = result.stderr.splitlines()
    assert [line.split("  ")[0] for line in reports] == ["step 2 of 6", "step 4 of 6", "step 6 of 6"]
    assert result_of("info", tmp_path / "run")["language_model"]
    line = run("pretrain", recipe).stdout  # it has ended: nothing is done again
    assert f"held-out perplexity {found['best']['both']:.2f} at step {found['best_step']}" in line
    assert "word frequencies only" in line


def test_pretrain_takes_settings_and_names_wrong_ones(recipe):
    assert result_of("pretrain", recipe, "--set", "steps=2", "--set", "heldout=null")["step"] == 2
    assert "unknown key 'stepz'" in error_of("pretrain", recipe, "--set", "stepz=2")
    assert "no such recipe" in error_of("pretrain", "nothing.toml")


def test_a_run_that_a_signal_stopped_ends_with_its_code(recipe, tmp_path):
    from elmokit import pretraining

    stopped = pretraining.PretrainResult(tmp_path, 3, 6, "SIGINT", None, 0, None, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "run_recipe", lambda *_, **__: stopped)
        result = CliRunner().invoke(main, ["pretrain", str(recipe)])
        assert (result.exit_code, result.stdout) == (130, f"{tmp_path}: step 3 of 6\n")
        patch.setenv("RANK", "1")  # the other processes of torchrun are silent
        assert run("pretrain", recipe).stdout == ""


def test_finetune_goes_on_from_any_model_with_the_words_of_the_text(recipe, folder, tmp_path):
    settings = ["--set", "batch_size=4", "--set", "unroll=5", "--set", "steps=2", "--set", "loss=full"]
    arguments = ["finetune", folder, tmp_path / "train.txt", "-o", tmp_path / "tuned", "--tokenized"]
    assert result_of(*arguments, *settings, "--set", "tensorboard=false")["step"] == 2
    found = result_of("info", tmp_path / "tuned")
    assert (found["language_model"], found["vocabulary_size"]) == (True, 10)
    assert found["bilm_parameters"] == result_of("info", folder)["bilm_parameters"]
    before, after = (ELMo.from_pretrained(name).bilm.state_dict() for name in (folder, tmp_path / "tuned"))
    changes = [float((after[name] - before[name]).abs().max()) for name in before]
    assert 0 < max(changes) < 2  # trained on, not begun anew


def test_finetune_takes_a_vocabulary_and_names_wrong_settings(recipe, language_model, tmp_path):
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\nthe\nbank\n")
    arguments = ["finetune", language_model, tmp_path / "train.txt", "-o", tmp_path / "tuned"]
    settings = ["--set", "batch_size=4", "--set", "steps=1", "--set", "tensorboard=false", "--set", "num_negatives=3"]
    run(*arguments, *settings, "--vocabulary", tmp_path / "words.txt", "--heldout", tmp_path / "train.txt")
    assert result_of("info", tmp_path / "tuned")["vocabulary_size"] == 5
    assert "unknown key 'stepz'" in error_of(*arguments, "--set", "stepz=1")
    assert "write a setting as key=value" in error_of(*arguments, "--set", "steps")


SMALL = [word for setting in ("batch_size=4", "unroll=5", "tensorboard=false") for word in ("--set", setting)]


def test_finetune_with_its_defaults_takes_a_small_text_and_says_how_the_perplexity_changed(
    recipe, language_model, tmp_path
):
    train = tmp_path / "train.txt"
    arguments = ["finetune", language_model, train, "--heldout", train, *SMALL]
    found = result_of(*arguments, "-o", tmp_path / "tuned")
    assert json.loads((tmp_path / "tuned" / "recipe.json").read_text())["optimizer"] == "adamw"
    assert found["best"]["both"] < found["before"]["both"]
    assert found["summary"].startswith(f"The held-out perplexity fell from {found['before']['both']:.2f} to ")
    assert found["summary"] in run(*arguments, "-o", tmp_path / "tuned").stdout.splitlines()


def test_finetune_says_in_plain_words_that_training_made_the_model_worse(recipe, language_model, tmp_path):
    train = tmp_path / "train.txt"
    arguments = ["finetune", language_model, train, "--heldout", train, "-o", tmp_path / "tuned", *SMALL]
    line = run(*arguments, "--set", "learning_rate=9", "--set", "warmup_steps=0").stdout.splitlines()[-1]
    assert line.startswith("Fine-tuning did not improve the model: the held-out perplexity was ")
    assert "The model as given is saved" in line
    given, tuned = (ELMo.from_pretrained(folder).bilm.state_dict() for folder in (language_model, tmp_path / "tuned"))
    assert all(np.array_equal(given[name], tuned[name]) for name in given)


def test_finetune_without_held_out_text_says_that_nothing_was_measured(recipe, language_model, tmp_path):
    result = run("finetune", language_model, tmp_path / "train.txt", "-o", tmp_path / "tuned", *SMALL)
    assert "without --heldout it is not measured whether the model improved" in result.stderr


def test_finetune_continues_a_longer_training_with_its_own_recipe(recipe, language_model, tmp_path):
    arguments = ["finetune", language_model, tmp_path / "train.txt", "-o", tmp_path / "rest", "--recipe", recipe]
    found = result_of(*arguments, "--set", "first_step=4")
    assert (found["step"], found["num_steps"]) == (6, 6)
    used = json.loads((tmp_path / "rest" / "recipe.json").read_text())
    assert (used["optimizer"], used["learning_rate"], used["first_step"]) == ("adagrad", 0.2, 4)
    assert "no such recipe" in error_of(*arguments[:-1], "nothing")


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_mistyped_path_writes_nothing_and_the_corrected_command_runs(recipe, language_model, tmp_path, verb):
    def arguments(train: Path) -> list[object]:
        if verb == "pretrain":
            return ["pretrain", recipe, "--set", f"train={train}"]
        return ["finetune", language_model, train, "-o", tmp_path / "run", *SMALL]

    assert "trian.txt: no such file" in error_of(*arguments(tmp_path / "trian.txt"))
    assert not (tmp_path / "run").exists()
    assert result_of(*arguments(tmp_path / "train.txt"))["ended"] == "steps"


def test_a_second_process_on_one_target_is_told_who_writes_it_and_exits_with_an_error(recipe, language_model, tmp_path):
    train, words = tmp_path / "train.txt", tmp_path / "words.txt"
    run("vocab", train, "-o", words)
    for folder in ("run", "tuned", "corpus"):
        (tmp_path / folder).mkdir()
    commands = {
        words.with_name(".words.txt.lock"): ["vocab", train, "-o", words, "--overwrite"],
        tmp_path / "corpus" / ".lock": ["prepare", train, "-o", tmp_path / "corpus", "--vocabulary", words],
        tmp_path / "run" / ".lock": ["pretrain", recipe],
        tmp_path / "tuned" / ".lock": ["finetune", language_model, train, "-o", tmp_path / "tuned", *SMALL],
    }
    hold = (
        "import sys; from pathlib import Path; from elmokit.files import claimed\n"
        "with claimed(Path('x'), lock=Path(sys.argv[1])): print('held', flush=True); sys.stdin.readline()"
    )
    for lock, command in commands.items():
        with subprocess.Popen(
            [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "held\n"
            assert f"(process {other.pid} on " in error_of(*command)
            other.kill()  # a dead process does not block
        run(*command)
        assert not lock.exists()


def test_a_recipe_of_the_package_is_given_by_name(recipe, tmp_path):
    sizes = ["char_dim=3", "filters=[[1, 2]]", "num_highways=1", "cell_dim=7", "projection_dim=5"]
    settings = [
        *(
            f"{key}={tmp_path / name}"
            for key, name in {"train": "train.txt", "heldout": "train.txt", "out": "r"}.items()
        ),
        *(f"model.{size}" for size in sizes),
        *("steps=2", "batch_size=4", "unroll=5", "num_negatives=3", "tensorboard=false", "eval_batch_size=2"),
    ]
    found = result_of("pretrain", "tiny", *(word for setting in settings for word in ("--set", setting)))
    assert (found["step"], found["folder"]) == (2, str(tmp_path / "r"))
    assert "no such recipe: pass a TOML file, or one of chinese, english" in error_of("pretrain", "huge")


def test_finetune_splits_raw_text_by_the_tokenizer_of_the_model(characters_model, recipe, tmp_path):
    settings = ["--set", "batch_size=4", "--set", "unroll=5", "--set", "steps=1", "--set", "loss=full"]
    arguments = ["finetune", characters_model, tmp_path / "train.txt", "--set", "tensorboard=false", *settings]
    run(*arguments, "-o", tmp_path / "raw")
    letters = set("".join((tmp_path / "train.txt").read_text().split()))
    assert set((tmp_path / "raw" / "vocabulary.txt").read_text().split()) == letters | {"<S>", "</S>", "<UNK>"}
    assert result_of("info", tmp_path / "raw")["tokenizer"] == "characters"
    assert "tokenized" in error_of(*arguments, "-o", tmp_path / "spaces", "--tokenized")
