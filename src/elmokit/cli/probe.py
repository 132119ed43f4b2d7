"""The verbs that measure what the layers of a model know: probe, probe mixes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from elmokit.cli.terminal import (
    DEFAULT_MODEL,
    device_option,
    json_option,
    load_model,
    model_option,
    print_json,
    print_table,
    progress_bar,
)


@click.group(invoke_without_command=True)
@model_option
@device_option
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder of the data of probes: pos/, wsd/, similarity/, or some of them.",
)
@click.option(
    "--heldout",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Text to measure the perplexity of, as running text and as single sentences; can be repeated.",
)
@click.option("--only", metavar="NAMES", help="Probes to run, as in pos,wsd.  [default: all whose data is given]")
@click.option("--out", "target", type=click.Path(path_type=Path), help="Folder for probe.json, probe.md and probe.svg.")
@click.option(
    "--beside",
    multiple=True,
    type=click.Path(path_type=Path),
    help="probe.json of another model to compare with; can be repeated.",
)
@json_option
@click.pass_context
def probe(
    context: click.Context,
    model: str | None,
    device: str | None,
    data: Path | None,
    heldout: tuple[Path, ...],
    only: str | None,
    target: Path | None,
    beside: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure what each layer of a model knows.

    Probes: senses, words and blanks need no data; wic, scws, pos, wsd and contexts need --data; perplexity needs
    --heldout. If a run with --out is stopped, the same command resumes it.
    """
    if context.invoked_subcommand is not None:
        if any(context.params.values()):
            raise click.UsageError(f"write the options of {context.invoked_subcommand} after its name")
        return
    from importlib.util import find_spec

    from elmokit.files import check_new_folder, replacing
    from elmokit.probes import PROBES, find_probes, read_report, run_probes
    from elmokit.probes.report import comparison, layer_figures, markdown, plot, tables

    files = find_probes(data, heldout)
    if only is not None:
        wanted = [name.strip() for name in only.split(",")]
        if unknown := [name for name in wanted if name not in PROBES]:
            raise ValueError(f"--only {unknown[0]!r}: the probes are {', '.join(PROBES)}")
        if missing := [name for name in wanted if name not in files]:
            raise ValueError(f"--only {missing[0]}: its data is not there: add --data, or --heldout for perplexity")
        files = {name: files[name] for name in files if name in wanted}
    others = [read_report(path) for path in beside]
    if target is not None:
        check_new_folder(target)
        target.mkdir(parents=True, exist_ok=True)
    elmo = load_model(model, device)
    with progress_bar("probing", None, in_bytes=False) as advance:
        report = run_probes(
            elmo,
            model or DEFAULT_MODEL,
            files,
            keep=None if target is None else target / "probe.json",
            progress=advance.to,
            on_probe=lambda name, state: click.echo(f"{name}: {state}", err=True),
        )
    if target is not None:
        with replacing(target / "probe.md") as temporary:
            temporary.write_text(markdown(report), encoding="utf-8")
        if find_spec("matplotlib") is None:
            click.echo('no plot without matplotlib: pip install "elmokit[plot]"', err=True)
        elif layer_figures(report):
            plot(report, target / "probe.svg")
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    for table in [*tables(report), *([comparison([report, *others])] if others else [])]:
        click.echo(f"\n{table.title}")
        print_table(False, {}, table.columns, table.rows)


@probe.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("--out", "target", type=click.Path(path_type=Path), help="Folder for mixes.md, mixes.json and mixes.svg.")
@json_option
def mixes(folders: tuple[str, ...], target: Path | None, as_json: bool) -> None:
    """Print which layers trained tasks use.

    The learned weights of their mixes become a table and a heat map. Each FOLDER is the --out of an `elmokit task
    compare` (its seeds are averaged) or `elmokit task train`.
    """
    from elmokit.probes.mixes import mix_table, read_mixes, write_mixes

    learned = read_mixes(folders)
    if target is not None:
        write_mixes(learned, target)
    print_table(as_json, {mix.name: dataclasses.asdict(mix) for mix in learned}, *mix_table(learned))
