"""The verb `serve`: a model behind a URL.

Input: the names of models, folders of tasks and of an index, limits.  Output: a server that runs until it is stopped,
with its log on standard error.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from elmokit.cli.terminal import device_option, downloads

if TYPE_CHECKING:
    from elmokit.model import ELMo


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL | NAME=MODEL]...")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="NAME=FOLDER",
    help="Serve a trained task at /tasks/NAME; can be repeated.",
)
@click.option("--index", metavar="FOLDER", help="Serve the neighbours of a store that `index build` wrote.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 accepts other machines."
)
@click.option("--port", type=int, default=8080, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--workers", type=int, default=1, show_default=True, help="Number of processes; they share the memory of the model."
)
@device_option
@click.option(
    "--quantize",
    type=click.Choice(["int8"]),
    help="Round the weights: smaller and faster on a CPU, slightly less exact.",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="ELMOKIT_API_KEY",
    help="Key that clients must send; can be repeated. Set ELMOKIT_API_KEY instead, with spaces between several keys: "
    "other users can see arguments.",
)
@click.option(
    "--api-key-file", metavar="FILE", help="File with one key per line. It is read again when the server gets SIGHUP."
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="Host name under which clients know the server; requests for other names are refused; can be repeated.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    help="Accept requests from web pages of this origin; * is every origin; can be repeated.",
)
@click.option(
    "--max-body-bytes", type=int, default=2_000_000, show_default=True, help="Largest size of a request in bytes."
)
@click.option(
    "--max-sentences", type=int, default=1024, show_default=True, help="Largest number of sentences per request."
)
@click.option(
    "--max-sentence-tokens", type=int, default=512, show_default=True, help="Largest number of tokens per sentence."
)
@click.option(
    "--max-request-tokens", type=int, default=8192, show_default=True, help="Largest number of tokens per request."
)
@click.option(
    "--max-requests",
    type=int,
    default=512,
    show_default=True,
    help="Number of requests at once; more are refused with 429.",
)
@click.option("--batch-tokens", type=int, help="Largest number of tokens per batch.  [default: by the device]")
@click.option(
    "--queue-tokens", type=int, help="Number of tokens that can wait; more are refused with 429.  [default: 16 batches]"
)
@click.option(
    "--patience", type=float, default=0.003, show_default=True, help="Seconds that a batch waits for more requests."
)
@click.option(
    "--deadline",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds to answer a request; later it fails with 504.",
)
@click.option(
    "--client-timeout",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds that a client can take to send a request or to read an answer.",
)
@click.option(
    "--drain",
    type=float,
    default=0.3,
    show_default=True,
    help="Seconds after SIGTERM in which new connections are accepted and /ready is 503.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level of the log. Requests are logged at info.",
)
def serve(
    models: tuple[str, ...],
    tasks: tuple[str, ...],
    index: str | None,
    host: str,
    port: int,
    workers: int,
    device: str | None,
    quantize: Literal["int8"] | None,
    api_keys: tuple[str, ...],
    api_key_file: str | None,
    allowed_hosts: tuple[str, ...],
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
    drain: float,
    log_level: str,
) -> None:
    """Serve MODEL over HTTP, with the explorer page at /.

    Without MODEL, serve en. Of several models, requests choose one with the field "model": its NAME, or MODEL itself.
    The first one is the default. Ctrl-C or SIGTERM stops the server after it has answered the requests that it
    accepted.
    """
    from elmokit.serve.server import serve as run
    from elmokit.serve.settings import Settings

    settings = Settings(
        host=host,
        port=port,
        workers=workers,
        api_keys=api_keys,
        api_key_file=api_key_file,
        allowed_hosts=tuple(host.lower() for host in allowed_hosts),
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
        drain=drain,
    )
    places = _read_models(models)
    folders = dict(map(_read_task, tasks))

    def load(model: str | None) -> ELMo:
        from elmokit.model import ELMo
        from elmokit.network import find_device

        # several workers and int8 are for the CPU
        where = find_device("cpu" if device is None and (workers > 1 or quantize is not None) else device)
        with downloads() as progress:
            return ELMo.from_pretrained(model, device=where, quantize=quantize, progress=progress)

    def announce(url: str) -> None:
        from elmokit.serve.observe import log_as_json

        log_as_json(getattr(logging, log_level.upper()))
        if sys.stderr.isatty():
            click.echo(f"{url} (Ctrl-C stops the server)", err=True)

    place = None if index is None else Path(index)
    (name, first), *others = places.items()
    run(
        partial(load, first),
        settings,
        name=name,
        tasks=folders,
        index=place,
        models={other: partial(load, model) for other, model in others},
        on_listening=announce,
    )


def _read_models(texts: tuple[str, ...]) -> dict[str, str | None]:
    """The models by name: MODEL, which is its own name, or NAME=MODEL."""
    if not texts:
        return {"elmokit-en": None}
    models: dict[str, str | None] = {}
    for text in texts:
        name, equals, model = text.partition("=")
        if not equals or os.path.exists(text):
            name = model = text
        if not name or not model:
            raise ValueError(f"{text}: write a name and a model, as in legal=runs/legal")
        if name in models:
            raise ValueError(f"there are two models {name}: give one of them another name, as in other={model}")
        models[name] = model
    return models


def _read_task(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--task {text}: write a name and a folder, as in ner=runs/ner")
    if not os.path.isdir(folder):
        raise ValueError(f"--task {text}: there is no folder {folder}")
    return name, Path(folder)
