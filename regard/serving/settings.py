"""The settings of the server: those of `regard serve`, and of its config file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from regard.config import checked, read_yaml
from regard.errors import ConfigError
from regard.section import Section
from regard.serving.limits import Limits
from regard.serving.messages import LanguagePair

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Served(Section):
    """A model, and how it is run."""

    name: str = Field("", description="its name in requests (default: the name of its folder)")
    folder: str = Field(description="folder of a trained model; for ctranslate2 also of an export")
    languages: list[str] = Field(
        default_factory=list, description="language pairs such as en:de, needed by translation protocols"
    )
    device: str = Field("auto", description="cpu, cuda or auto")
    engine: Literal["regard", "ctranslate2"] = Field("regard", description="decoding engine")
    quantization: str | None = Field(None, description="how ctranslate2 stores weights: float32, int8, …")
    precision: Literal["float32", "bfloat16", "int8"] | None = Field(
        None, description="precision of decoding (default: the model's own search.precision)"
    )
    search: dict[str, Any] = Field(default_factory=dict, description="changes to the model's own search settings")
    batch_tokens: int | None = Field(
        None, ge=1, le=10**8, description="tokens decoded at once (default: the model's own search.batch_tokens)"
    )
    threads: int | None = Field(None, ge=1, le=1024, description="threads of its process (default: torch's own)")

    @field_validator("languages")
    @classmethod
    def _pairs(cls, languages: list[str]) -> list[str]:
        for pair in languages:
            if not all(LANGUAGE.fullmatch(part) for part in pair.split(":")) or pair.count(":") != 1:
                raise ValueError(f"'{pair[:40]}' names no two languages; write them as en:de")
        return languages

    @model_validator(mode="after")
    def _fits(self) -> Served:
        name = self.name or Path(self.folder).absolute().name
        if not NAME.fullmatch(name):
            raise ValueError(f"'{name[:100]}' is no name for a model; letters, digits, '.', '_' and '-' will do")
        object.__setattr__(self, "name", name)
        if self.engine == "regard" and self.quantization is not None:
            raise ValueError("quantization goes with engine ctranslate2; here, precision int8 will do")
        if self.engine == "ctranslate2" and self.precision is not None:
            raise ValueError("precision goes with engine regard; here, quantization int8 will do")
        return self

    @property
    def pairs(self) -> list[LanguagePair]:
        """The languages, as protocols take them."""
        return [LanguagePair(source=one, target=other) for one, other in (x.split(":") for x in self.languages)]


class ServerSettings(Section):
    """The server: its models, address, access and limits."""

    models: list[Served] = Field(default_factory=list, description="models to serve, the first by default")
    host: str = Field("127.0.0.1", description="address to listen at; 0.0.0.0: all addresses of this machine")
    port: int = Field(8000, ge=0, le=65535, description="port to listen at (0: any free port)")
    keys: str | None = Field(
        None, description="file of API keys, as `regard serve --new-key` writes it (default: no key is needed)"
    )
    cors: list[str] = Field(
        default_factory=list,
        description="origins whose pages may send requests, such as https://example.org "
        "(default: only the server's own)",
    )
    hosts: list[str] | None = Field(
        None, description="host names that requests may use (default: at 127.0.0.1 only localhost; else any)"
    )
    proxies: list[str] = Field(
        default_factory=list, description="addresses of proxies whose X-Forwarded-For is trusted"
    )
    log: Literal["json", "none"] = Field(
        "json", description="log of requests on standard error; it never contains their texts"
    )
    limits: Limits = Field(default_factory=Limits)

    @model_validator(mode="after")
    def _names_differ(self) -> ServerSettings:
        folders: dict[str, str] = {}
        for model in self.models:
            if (other := folders.setdefault(model.name, model.folder)) is not model.folder:
                raise ValueError(
                    f"{model.folder} and {other} would both be called '{model.name}'; write NAME={model.folder}"
                )
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK


def read_settings(path: Path | None, changes: dict[str, Any]) -> ServerSettings:
    """The settings of a config file, if there is one, with changes; paths in it are relative to it."""
    settings: dict[str, Any] = {}
    if path is not None:
        settings = read_yaml(path)
        for model in settings["models"] if isinstance(settings.get("models"), list) else ():
            if isinstance(model, dict) and isinstance(model.get("folder"), str):
                model["folder"] = str(path.parent / model["folder"])
        if isinstance(settings.get("keys"), str):
            settings["keys"] = str(path.parent / settings["keys"])
    found = checked(ServerSettings, {**settings, **changes}, str(path or "the settings"))
    if not found.models:
        raise ConfigError("there is no model to serve; name the folder of one, such as runs/demo")
    return found
