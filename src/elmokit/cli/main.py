"""The command line: `elmokit VERB --help` says what each verb reads and writes.

Input: arguments, files, standard input.  Output: files, and a result on standard output, as text or with --json as one
JSON object; progress and errors go to standard error.  Bad input is one line and exit code 1, wrong usage is 2, Ctrl-C
is 130.  What a verb needs is imported inside it, so that --help does not wait for torch.
"""

from __future__ import annotations

import click

from elmokit import __version__
from elmokit.cli.bench import bench
from elmokit.cli.index import index, neighbours
from elmokit.cli.language_model import perplexity, substitutes
from elmokit.cli.models import convert, export, info, models
from elmokit.cli.probe import probe
from elmokit.cli.senses import senses
from elmokit.cli.serve import serve
from elmokit.cli.tasks import task
from elmokit.cli.terminal import OneLineErrors
from elmokit.cli.training import finetune, prepare, pretrain, vocab
from elmokit.cli.vectors import embed, encode, similar


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="elmokit")
@click.option("--debug", is_flag=True, envvar="ELMOKIT_TRACEBACK", help="Show the full traceback of an error.")
def main(debug: bool) -> None:
    """Contextual word vectors from bidirectional language models (ELMo).

    A model is a folder, a name (en, zh, small, medium, original, original-5.5b) or a Hugging Face id. Without one,
    verbs use en, the English model of the package; zh is the Chinese one. `elmokit models` lists the names.
    """


VERBS = [
    *(embed, encode, similar, senses, substitutes, perplexity),
    *(info, models, convert, export),
    *(vocab, prepare, pretrain, finetune),
    *(task, probe, index, neighbours, serve, bench),
]
for _verb in VERBS:
    main.add_command(_verb)
