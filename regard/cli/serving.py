"""The command that serves models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard.cli.checks import check_model
from regard.cli.options import Quantization
from regard.cli.shared import app, brought_in, say, warn
from regard.errors import ConfigError


@app.command(short_help="Serve models over HTTP.")
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Folder of a trained model, or NAME=FOLDER; may be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Server settings, as YAML.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at (127.0.0.1: only this machine).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen at (8000; 0: any free port).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    engine: Annotated[
        Literal["regard", "ctranslate2"] | None,
        typer.Option(help="Decoding engine; ctranslate2 also takes an exported folder."),
    ] = None,
    quantization: Quantization = None,
    precision: Annotated[
        Literal["float32", "bfloat16", "int8"] | None, typer.Option(help="Precision of decoding, with engine regard.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each model's process.")] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=en:de", help="Languages that a model translates, from:to; may be repeated."),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of API key hashes; every request then needs one of these keys."),
    ] = None,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Make an API key, add its hash to --keys FILE, print it and exit."),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="With --new-key: an admin key, which may reload models.")
    ] = False,
) -> None:
    """Serve models over HTTP, each in its own process, until Ctrl-C or SIGTERM. SIGHUP reloads all models.

    Requests are batched continuously. Accepted requests are answered before the server exits.
    """
    if new_key is not None:
        from regard.serving.access import new_key as make_key

        if keys is None:
            raise ConfigError("--new-key adds to a file of keys; say which with --keys FILE")
        typer.echo(make_key(keys, new_key, admin=admin))
        return
    from regard.serving.settings import ServerSettings, read_settings

    how: dict[str, Any] = {"device": device, "engine": engine, "quantization": quantization}
    how |= {"precision": precision, "threads": threads}
    changes: dict[str, Any] = {"host": host, "port": port, "keys": None if keys is None else str(keys)}
    changes = {name: value for name, value in changes.items() if value is not None}
    if models:
        changes["models"] = [_named(text) for text in models]
    settings = _with_models(read_settings(config, changes), how, languages or [], ServerSettings)
    for model in settings.models:
        check_model(Path(model.folder), exported=model.engine == "ctranslate2")
    if not settings.is_local and settings.keys is None:
        warn(f"whoever reaches {settings.host} may ask, since there are no --keys")
    from regard.errors import require

    require("fastapi", "uvicorn", "prometheus_client", "python_multipart")
    from regard.serving.server import run

    run(settings, modules=brought_in, say=say)


def _named(text: str) -> dict[str, str]:
    name, equals, folder = text.partition("=")
    return {"name": name, "folder": folder} if equals and "/" not in name else {"folder": text}


def _with_models(settings: Any, how: dict[str, Any], languages: list[str], kind: Any) -> Any:
    """Settings with what the command line says of all models, and of the languages of each."""
    given = {name: value for name, value in how.items() if value is not None}
    pairs: dict[str, list[str]] = {}
    for text in languages:
        name, equals, pair = text.rpartition("=")
        if not equals and len(settings.models) > 1:
            raise ConfigError(f"--languages {text}: say of which model, such as {settings.models[0].name}={text}")
        pairs.setdefault(name or settings.models[0].name, []).extend(pair.split(","))
    if unknown := set(pairs) - {model.name for model in settings.models}:
        raise ConfigError(f"--languages names no model that is served: {', '.join(sorted(unknown))}")
    from regard.config import checked

    plain = settings.model_dump()
    for model in plain["models"]:
        model.update(given)
        model["languages"] = pairs.get(model["name"], model["languages"])
    return checked(kind, plain, "the settings")
