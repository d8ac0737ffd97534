"""Every setting of Regard, typed, validated and documented in one place.

A config file is YAML with the sections below. `load` reads it, applies `a.b=c` overrides, resolves its preset and
paths, and reports all that is wrong with it at once. `commented` writes the file that `regard new` leaves.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regard.errors import ConfigError

Cell = Literal["rnn", "lstm", "gru"]
ScoreKind = Literal["dot", "bilinear", "additive", "mlp", "scaled_dot"]
Place = Literal["recurrence", "output", "feeding"]
Positions = Literal["sinusoidal", "learned"]


class Section(BaseModel):
    """A group of settings; a name it does not know is an error."""

    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True)


class Data(Section):
    """What to learn from."""

    train: str | list[str] = Field(
        "train.tsv",
        description="training pairs: one .tsv or .jsonl file, or two text files of equal length in a list "
        "[source, target]; each may end in .gz",
    )
    valid: str | list[str] = Field("valid.tsv", description="pairs to steer by, in the same form")
    test: str | list[str] | None = Field(None, description="pairs to report on when training ends")
    columns: list[int | str] | None = Field(
        None,
        description="where to find source, target and (if there) word alignment: column numbers from 1 in .tsv, keys "
        "in .jsonl; default [1, 2, 3] and [source, target, alignment]",
    )
    max_length: int = Field(256, ge=1, description="longest sequence, in tokens, on either side")
    bad_lines: Literal["skip", "error"] = Field(
        "skip", description="pairs with an empty or too long side: leave them out and say so, or stop"
    )


class Tokens(Section):
    """How text becomes numbers. Learnt from the training data and saved with the model."""

    kind: Literal["unigram", "bpe", "char", "word", "byte"] = Field(
        "unigram", description="unigram and bpe are SentencePiece subwords"
    )
    size: int = Field(8000, ge=8, description="largest vocabulary (subwords and words)")
    shared: bool = Field(True, description="one vocabulary for source and target")
    sampling: float = Field(
        0.0,
        ge=0,
        le=1,
        description="draw subwords anew each time a sentence is trained on (0: never): for unigram how peaked the "
        "draw is (Kudo 2018, try 0.2), for bpe how often a merge is dropped (Provilkov et al. 2020, try 0.1)",
    )


class RecurrentEncoder(Section):
    """A stack of recurrent layers over the source."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: int = Field(1, ge=1, description="how many on top of one another")
    bidirectional: bool = Field(True, description="read both ways, each with half of d_model, and join")
    reverse: bool = Field(False, description="read the source back to front (Sutskever et al. 2014)")


class TransformerSettings(Section):
    """What Transformer encoders and decoders share."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(3, ge=1, description="how many blocks")
    heads: int = Field(4, ge=1, description="attention heads; must divide d_model")
    d_ff: int = Field(1024, ge=1, description="width inside the feed-forward part")
    norm: Literal["pre", "post"] = Field("pre", description="layer norm before each part, or after as published")
    positions: Positions = Field("sinusoidal", description="how order is told: sinusoidal or learned")
    activation: Literal["relu", "gelu"] = Field("relu", description="inside the feed-forward part")


class TransformerEncoder(TransformerSettings):
    """Blocks of self-attention over the source (Vaswani et al. 2017)."""


class RecurrentDecoder(Section):
    """A recurrent language model of the target that looks at the source in one of three ways."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: int = Field(1, ge=1, description="how many on top of one another")
    context: Literal["last", "every", "attention"] = Field(
        "attention",
        description="last: the encoding only starts the state; every: it enters at every step; attention: a new "
        "mixture of encoder states at every step",
    )
    score: ScoreKind | None = Field(
        None, description="how attention compares: dot, bilinear, additive, mlp or scaled_dot (default additive)"
    )
    place: Place | None = Field(
        None,
        description="where the mixture goes: recurrence (into the state), output (before the output layer) or feeding "
        "(before the output layer, and back in at the next step) (default feeding)",
    )
    bridge: Literal["dense", "copy"] = Field(
        "dense", description="how the state starts: from a dense layer over the encoding, or as a copy of it"
    )

    @model_validator(mode="after")
    def _attention_settings_need_attention(self) -> RecurrentDecoder:
        for name in ("score", "place"):
            if self.context != "attention" and getattr(self, name) is not None:
                raise ValueError(f"'{name}' needs context: attention; here context is '{self.context}'")
        return self


class TransformerDecoder(TransformerSettings):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017)."""


EncoderSettings = Annotated[RecurrentEncoder | TransformerEncoder, Field(discriminator="kind")]
DecoderSettings = Annotated[RecurrentDecoder | TransformerDecoder, Field(discriminator="kind")]


class Model(Section):
    """The network: any encoder with any decoder."""

    d_model: int = Field(256, ge=2, description="the one width: embeddings, states, blocks")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of activations set to zero in training")
    tie_output: bool = Field(True, description="the output layer is the target embedding, transposed")
    share_embeddings: bool = Field(False, description="source and target use one embedding; needs tokens.shared")
    encoder: EncoderSettings = Field(default_factory=RecurrentEncoder)
    decoder: DecoderSettings = Field(default_factory=RecurrentDecoder)

    @model_validator(mode="before")
    @classmethod
    def _kinds_default_to_lstm(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        parts = {name: settings[name] for name in ("encoder", "decoder") if isinstance(settings.get(name), dict)}
        return {**settings, **{name: {"kind": "lstm", **part} for name, part in parts.items()}}

    @model_validator(mode="after")
    def _widths_fit(self) -> Model:
        for name, part in (("encoder", self.encoder), ("decoder", self.decoder)):
            if isinstance(part, TransformerSettings):
                if self.d_model % part.heads:
                    fitting = [h for h in (1, 2, 4, 8, 16, 32) if self.d_model % h == 0]
                    nearest = min(fitting, key=lambda heads, wanted=part.heads: abs(heads - wanted))  # type: ignore[misc]
                    raise ValueError(
                        f"d_model ({self.d_model}) is not divisible by {name}.heads ({part.heads}); try {nearest}"
                    )
                if part.positions == "sinusoidal" and self.d_model % 2:
                    raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if isinstance(self.encoder, RecurrentEncoder) and self.encoder.bidirectional and self.d_model % 2:
            raise ValueError(f"a bidirectional encoder needs an even d_model, not {self.d_model}")
        if isinstance(self.decoder, RecurrentDecoder) and self.decoder.bridge == "copy":
            same = isinstance(self.encoder, RecurrentEncoder) and (self.encoder.kind, self.encoder.layers) == (
                self.decoder.kind,
                self.decoder.layers,
            )
            if not same:
                raise ValueError(
                    "decoder.bridge 'copy' needs an encoder of the same kind and layers "
                    f"(here {self.encoder.kind} x {self.encoder.layers} to {self.decoder.kind} x {self.decoder.layers})"
                    "; use bridge: dense"
                )
        return self


class Training(Section):
    """How to learn."""

    steps: int = Field(20000, ge=1, description="updates in all")
    batch_tokens: int = Field(4096, ge=1, description="tokens in a batch, the larger of source and target")
    accumulate: int = Field(1, ge=1, description="batches to an update")
    learning_rate: float = Field(1e-3, gt=0, description="at the top of the schedule")
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "inverse_sqrt", description="how the rate falls after the warm-up"
    )
    warmup: int = Field(1000, ge=0, description="updates over which the rate rises from 0")
    weight_decay: float = Field(0.01, ge=0, description="of AdamW; not on biases, norms and embeddings")
    betas: tuple[float, float] = Field((0.9, 0.98), description="of AdamW")
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient (0: no limit)")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of the probability spread over all tokens")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16 computes in half precision, weights stay in float32"
    )
    device: str = Field("auto", description="cpu, cuda, or auto: the GPU if there is one")
    seed: int = Field(1, ge=0, description="of everything drawn at random")
    validate_every: int = Field(1000, ge=1, description="updates between validations")
    validate_sentences: int = Field(500, ge=1, description="how many validation sentences to decode for the metric")
    metric: Literal["bleu", "chrf", "exact", "loss"] = Field("bleu", description="what 'best' means")
    patience: int = Field(0, ge=0, description="validations without a better one before stopping (0: never stop early)")
    save_every: int = Field(500, ge=1, description="updates between checkpoints")
    keep_last: int = Field(3, ge=1, description="how many latest checkpoints to keep, beside the best")
    average: int = Field(
        1, ge=1, description="finish with the mean of this many latest checkpoints if it is better (1: the best alone)"
    )
    log_every: int = Field(50, ge=1, description="updates between lines in log.jsonl")
    tensorboard: bool = Field(True, description="also write TensorBoard events, if it is installed")

    @model_validator(mode="after")
    def _enough_kept(self) -> Training:
        if self.average > self.keep_last:
            raise ValueError(f"average ({self.average}) needs keep_last at least as large (now {self.keep_last})")
        return self


class Search(Section):
    """How to write the output. Each can be given to `regard generate` and `System.generate` too."""

    beam: int = Field(5, ge=1, description="hypotheses kept at each step (1: greedy)")
    nbest: int = Field(1, ge=1, description="how many outputs to give for an input; at most beam, or any with sample")
    length_penalty: Literal["none", "gnmt", "average"] = Field(
        "average",
        description="divide log p by 1, by ((5 + length) / 6) ** alpha (Wu et al. 2016), or by length ** alpha",
    )
    alpha: float = Field(1.0, ge=0, description="strength of the length penalty")
    coverage: float = Field(
        0.0, ge=0, description="strength of the coverage penalty (Wu et al. 2016); re-ranks the beam, needs attention"
    )
    no_repeat: int = Field(0, ge=0, description="never write an n-gram of this size twice (0: may)")
    min_length: int = Field(0, ge=0, description="fewest tokens")
    max_length: int = Field(256, ge=1, description="most tokens")
    max_ratio: float = Field(3.0, gt=0, description="most tokens for each source token (and 10 more)")
    exact: bool = Field(False, description="search on until no open hypothesis could still win")
    sample: bool = Field(False, description="draw from the model instead of searching for the best")
    temperature: float = Field(1.0, gt=0, description="below 1 sharpens what sample draws from, above flattens")
    top_k: int = Field(0, ge=0, description="sample among this many likeliest tokens (0: all)")
    top_p: float = Field(1.0, gt=0, le=1, description="sample among the likeliest tokens that hold this share")
    unknown: bool = Field(False, description="may write <unk>")
    seed: int = Field(1, ge=0, description="of what sample draws")
    max_source: int = Field(1024, ge=1, description="longest source, in tokens; a longer one gets no output")
    batch_tokens: int = Field(8192, ge=1, description="source tokens times beam to work on at once")

    @model_validator(mode="after")
    def _fits(self) -> Search:
        if not self.sample and self.nbest > self.beam:
            raise ValueError(f"nbest ({self.nbest}) is more than beam ({self.beam}); raise beam or use sample")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length ({self.min_length}) is more than max_length ({self.max_length})")
        return self


class Config(Section):
    """All settings of a run."""

    preset: str | None = Field(None, description="start from a named model (see `regard models`)")
    run: str = Field("runs/model", description="folder for the trained model and all that belongs to it")
    data: Data = Field(default_factory=Data)
    tokens: Tokens = Field(default_factory=Tokens)
    model: Model = Field(default_factory=Model)
    training: Training = Field(default_factory=Training)
    search: Search = Field(default_factory=Search)

    @staticmethod
    def parse(settings: dict[str, Any], base: str | Path = ".") -> Config:
        """Settings as in a config file, with paths relative to `base`; all that is wrong is said at once."""
        return resolve_paths(parse(settings), Path(base))

    @staticmethod
    def load(path: str | Path, overrides: list[str] | None = None) -> Config:
        """A config file, with `a.b=c` overrides."""
        return load(path, overrides)

    @model_validator(mode="after")
    def _sections_fit(self) -> Config:
        if self.model.share_embeddings and not self.tokens.shared:
            raise ValueError("model.share_embeddings needs tokens.shared: true")
        if self.tokens.sampling and self.tokens.kind not in ("unigram", "bpe"):
            raise ValueError(f"tokens.sampling needs kind unigram or bpe, not {self.tokens.kind}")
        return self


def parse(settings: dict[str, Any], where: str = "the settings") -> Config:
    """Check plain settings and make a `Config` of them; all that is wrong is said at once."""
    from regard.presets import PRESETS  # a preset is itself settings, so it stands after this module

    name = settings.get("preset")
    if name is not None:
        if name not in PRESETS:
            raise ConfigError(f"unknown preset '{name}' in {where}{_did_you_mean(str(name), list(PRESETS))}")
        settings = merge(PRESETS[name].settings, settings)
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        lines = [_explain(problem, settings) for problem in error.errors()]
        raise ConfigError("\n".join([f"{where}: {line}" for line in lines])) from None


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read a config file, apply `a.b=c` overrides, and make its paths absolute (they are relative to the file)."""
    path = Path(path)
    settings = merge(read_yaml(path), override_settings(overrides or []))
    return resolve_paths(parse(settings, str(path)), path.parent)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds settings."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config file {path}; `regard new DIR` writes one to start from") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give the config file in it, such as {path / 'config.yaml'}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); is it a config file?") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line} is not valid YAML: {getattr(error, 'problem', error)}") from None
    if settings is None:
        raise ConfigError(f"{path} is empty; `regard new DIR` writes a config to start from")
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} should hold settings as 'name: value', not a {type(settings).__name__}")
    return settings


def override_settings(overrides: list[str]) -> dict[str, Any]:
    """`["training.steps=100"]` as nested settings."""
    settings: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise ConfigError(f"cannot read '{override}'; write it as section.setting=value, e.g. training.steps=500")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"cannot read the value in '{override}'; quote it if it holds YAML signs") from None
        for part in reversed(name.split(".")):
            value = {part: value}
        settings = merge(settings, value)
    return settings


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section. A section of another `kind` replaces the one below it."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            another = "kind" in value and "kind" in old and not _same_family(value["kind"], old["kind"])
            merged[name] = value if another else merge(old, value)
        else:
            merged[name] = value
    return merged


def _same_family(a: object, b: object) -> bool:
    cells = get_args(Cell)
    return a == b or (a in cells and b in cells)


def resolve_paths(config: Config, base: Path) -> Config:
    """The config with paths relative to `base` made absolute."""

    def absolute(files: str | list[str] | None) -> str | list[str] | None:
        if files is None:
            return None
        return (
            [str((base / f).absolute()) for f in files] if isinstance(files, list) else str((base / files).absolute())
        )

    data = config.data.model_copy(
        update={name: absolute(getattr(config.data, name)) for name in ("train", "valid", "test")}
    )
    return config.model_copy(update={"data": data, "run": str((base / config.run).absolute())})


def dump(config: Config) -> str:
    """All settings as YAML, in the order in which they are documented."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def commented(settings: dict[str, Any]) -> str:
    """A config file with every setting, its default or the value in `settings`, and what it means."""
    config = parse(settings)
    lines = ["# A Regard config. Every setting is here; what you delete keeps its default.", ""]
    _comment_section(config, lines, 0)
    return "\n".join(lines) + "\n"


def _comment_section(section: Section, lines: list[str], depth: int) -> None:
    indent = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            title = (type(value).__doc__ or "").strip().splitlines()[0]
            lines += ["", f"{indent}{name}:  # {title}"] if depth == 0 else [f"{indent}{name}:  # {title}"]
            _comment_section(value, lines, depth + 1)
            continue
        text = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True, width=10**6)
        setting = f"{indent}{name}: {text.removesuffix(chr(10)).removesuffix('...').strip()}"
        lines.append(f"{setting}  # {field.description}" if field.description else setting)


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(known)}"


def _explain(problem: Any, settings: dict[str, Any]) -> str:
    """One line for one of pydantic's findings."""
    place = [str(part) for part in problem["loc"]]
    section, known = _section_at(place[:-1], settings)
    where = f"[{'.'.join(section)}]" if section else "the top level"
    if problem["type"] == "extra_forbidden":
        return f"unknown setting '{place[-1]}' in {where}{_did_you_mean(place[-1], known)}"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = ", ".join(get_args(Cell)) + ", transformer"
        return f"[{'.'.join(place)}] needs a kind; there are: {kinds}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        section, _ = _section_at(place, settings)
        return f"[{'.'.join(section)}] {message}" if section else message
    return f"'{place[-1]}' in {where} is {problem['input']!r}: {message[0].lower() + message[1:]}"


def _section_at(place: list[str], settings: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The section that pydantic's location names, without the tags of unions, and the settings known there."""
    section: type[Section] = Config
    path: list[str] = []
    node: Any = settings
    for part in place:
        if part not in section.model_fields:
            continue
        path.append(part)
        node = node.get(part, {}) if isinstance(node, dict) else {}
        kinds: dict[str, type[Section]] = {
            "data": Data, "tokens": Tokens, "model": Model, "training": Training, "search": Search,
            "encoder": TransformerEncoder if node.get("kind") == "transformer" else RecurrentEncoder,
            "decoder": TransformerDecoder if node.get("kind") == "transformer" else RecurrentDecoder,
        }  # fmt: skip
        section = kinds.get(part, section)
    return path, list(section.model_fields)
