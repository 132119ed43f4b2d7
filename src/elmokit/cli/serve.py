"""The verb `serve`: a model behind a URL.

Enters: the model's name, folders of tasks and of an index, limits.  Leaves: a server that runs until it is told to
end, and its log on standard error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from elmokit.cli.terminal import downloads

if TYPE_CHECKING:
    from elmokit.model import ELMo


@click.command()
@click.argument("model", required=False)
@click.option("--task", "tasks", multiple=True, metavar="NAME=FOLDER", help="Serve a trained task at /tasks/NAME.")
@click.option("--index", metavar="FOLDER", help="Look up neighbours in this index; see elmokit index.")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 lets other machines in.")
@click.option("--port", type=int, default=8080, show_default=True, help="0 takes a free one.")
@click.option("--workers", type=int, default=1, show_default=True, help="Processes that share the model's memory.")
@click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one.")
@click.option("--quantize", type=click.Choice(["int8"]), help="Smaller and faster on a CPU, slightly less exact.")
@click.option("--api-key", envvar="ELMOKIT_API_KEY", help="Better given as ELMOKIT_API_KEY: others see arguments.")
@click.option("--cors-origin", "cors_origins", multiple=True, help="Let pages of this origin ask; * is every origin.")
@click.option("--max-body-bytes", type=int, default=2_000_000, show_default=True)
@click.option("--max-sentences", type=int, default=1024, show_default=True, help="Of one request.")
@click.option("--max-sentence-tokens", type=int, default=512, show_default=True)
@click.option("--max-request-tokens", type=int, default=8192, show_default=True)
@click.option("--max-requests", type=int, default=512, show_default=True, help="At once; beyond it comes 429.")
@click.option("--batch-tokens", type=int, help="That run together; by default what suits the device.")
@click.option("--queue-tokens", type=int, help="That may wait; beyond it comes 429.  [default: 16 batches]")
@click.option("--patience", type=float, default=0.003, show_default=True, help="Seconds to wait for company.")
@click.option("--deadline", type=float, default=30.0, show_default=True, help="Seconds; beyond it comes 504.")
@click.option("--client-timeout", type=float, default=30.0, show_default=True, help="Seconds for a slow client.")
def serve(
    model: str | None,
    tasks: tuple[str, ...],
    index: str | None,
    host: str,
    port: int,
    workers: int,
    device: str | None,
    quantize: Literal["int8"] | None,
    api_key: str | None,
    cors_origins: tuple[str, ...],
    max_body_bytes: int,
    max_sentences: int,
    max_sentence_tokens: int,
    max_request_tokens: int,
    max_requests: int,
    batch_tokens: int | None,
    queue_tokens: int | None,
    patience: float,
    deadline: float,
    client_timeout: float,
) -> None:
    """Answer HTTP requests for the vectors of MODEL, and show its page at /.

    Ends with Ctrl-C or SIGTERM, after what it has accepted is answered.
    """
    from elmokit.serve.server import serve as run
    from elmokit.serve.settings import Settings

    settings = Settings(
        host=host,
        port=port,
        workers=workers,
        api_key=api_key,
        cors_origins=cors_origins,
        max_body_bytes=max_body_bytes,
        max_sentences=max_sentences,
        max_sentence_tokens=max_sentence_tokens,
        max_request_tokens=max_request_tokens,
        max_requests=max_requests,
        batch_tokens=batch_tokens,
        queue_tokens=queue_tokens,
        patience=patience,
        deadline=deadline,
        client_timeout=client_timeout,
    )
    folders = dict(map(_read_task, tasks))

    def load() -> ELMo:
        import torch

        from elmokit.model import ELMo

        where = device or ("cuda" if workers == 1 and quantize is None and torch.cuda.is_available() else "cpu")
        with downloads() as progress:
            return ELMo.from_pretrained(model, device=where, quantize=quantize, progress=progress)

    def announce(url: str) -> None:
        from elmokit.serve.observe import log_as_json

        log_as_json()
        if sys.stderr.isatty():
            click.echo(f"{url} (Ctrl-C ends it)", err=True)

    place = None if index is None else Path(index)
    run(load, settings, name=model or "elmokit-en", tasks=folders, index=place, on_listening=announce)


def _read_task(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--task {text}: write a name and a folder, as in ner=runs/ner")
    if not os.path.isdir(folder):
        raise ValueError(f"--task {text}: there is no folder {folder}")
    return name, Path(folder)
