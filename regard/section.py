"""A group of settings, and sections whose settings depend on their `kind`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from regard.registry import Family

Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Small = Annotated[int, Field(ge=1, le=1000)]
Weight = Annotated[float, Field(ge=0, le=10**6)]
Size = Annotated[int, Field(ge=1, le=10**6)]
Period = Annotated[int, Field(ge=1, le=10**12)]
Count = Annotated[int, Field(ge=0, le=10**12)]


class Section(BaseModel):
    """A group of settings; a name it does not know is an error."""

    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True, allow_inf_nan=False)


class Kind:
    """Annotates a section, or with `several` a list of them, whose settings follow from its `kind`."""

    def __init__(self, family: Family, default: str, *, several: bool = False) -> None:
        self.family, self.default, self.several = family, default, several

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        parse: CoreSchema = core_schema.no_info_plain_validator_function(self.parse)
        if self.several:
            choices = {"one": parse, "several": core_schema.list_schema(parse)}
            parse = core_schema.tagged_union_schema(choices, lambda x: "several" if isinstance(x, list) else "one")
        return core_schema.chain_schema([parse, handler(source)])

    def section(self, value: Any) -> type[Section] | None:
        """The settings class of a section as it stands in a config; None if there is no such kind."""
        kind = value.get("kind", self.default) if isinstance(value, dict) else self.default
        known = isinstance(kind, str) and kind in self.family.kinds
        return self.family.settings(kind) if known else None

    def kinds_with(self, setting: str) -> list[str]:
        """The kinds of the family that have a setting of this name."""
        return [kind for kind in self.family.kinds if setting in self.family.settings(kind).model_fields]

    def parse(self, value: Any) -> Any:
        """A section of the right class; a name alone stands for a section of that kind."""
        if isinstance(value, Section):
            return value
        value = {"kind": value} if isinstance(value, str) else value
        if not isinstance(value, dict):
            example = f"{{kind: {self.default}}}"
            raise PydanticCustomError("section", "should be a section such as {example}", {"example": example})
        section = self.section(value)
        if section is None:
            raise PydanticCustomError("unknown_kind", "{text}", {"text": self.family.unknown(value.get("kind"))})
        return section.model_validate({"kind": self.default, **value})


class SideSettings(Section):
    """What every kind of source and target has."""

    stem: ClassVar[str | None] = None  # the usual stem of an encoder for it
    given: ClassVar[bool] = True  # False: there is no such side
    text: ClassVar[bool] = False  # it is cut into tokens, or into words
    spelled: ClassVar[bool] = False  # its words are read by their characters, and have no ids
    joined: ClassVar[bool] = False  # several columns may be read as one
    scored_by: ClassVar[tuple[str, ...]] = ()  # metrics of text written of such a source, the first to steer by

    @property
    def own_tokens(self) -> TokenSettings | None:
        """How a text that has its own vocabulary is cut into tokens."""
        return None

    kind: str = "text"
    column: int | str | list[int | str] | None = Field(
        None,
        description="where it is in a record: in .tsv a column number from 1, or a name in the header; in .jsonl a "
        "key; several columns of text are read as one, with <sep> between (default: sources first, then the target; "
        "in .jsonl, source and target)",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        le=10**8,
        description="maximum number of elements of this side in a batch (default: training.batch_tokens)",
    )

    @model_validator(mode="after")
    def _columns_fit(self) -> SideSettings:
        if self.column is not None and not self.given:
            raise ValueError(f"column is {self.column}, but there is no source; the text is the target (target.column)")
        if isinstance(self.column, list) and not (self.joined and self.column):
            which = "one, or several in a list" if self.joined else "one"
            raise ValueError(f"column is {self.column}; name {which}, or leave it out")
        return self


class TokenSettings(Section):
    """The tokenizer. Learnt from the training data and saved with the model."""

    kind: Literal["unigram", "bpe", "char", "word", "byte", "imported"] = Field(
        "unigram",
        description="unigram and bpe are SentencePiece subwords; imported is the vocabulary of an imported model "
        "(`regard import`), and is not learnt",
    )
    size: int = Field(8000, ge=8, le=10**7, description="maximum vocabulary size (subwords and words)")
    sampling: Fraction = Field(
        0.0,
        description="subword regularisation: draw subwords anew each time a sentence is trained on (0: never); for "
        "unigram how peaked the draw is (Kudo 2018, try 0.2), for bpe how often a merge is dropped (Provilkov et al. "
        "2020, try 0.1)",
    )
    sentinels: int = Field(
        0,
        ge=0,
        le=10000,
        description="sentinel tokens for missing spans, <extra_id_0> and so on, which span_corruption needs (T5 has "
        "100)",
    )


class TargetSettings(SideSettings):
    """What every kind of target has."""

    written: ClassVar[bool] = False  # a token at a time; else predicted at once
    of_words: ClassVar[bool] = False  # one prediction for each word of the source
    of_places: ClassVar[bool] = False  # one prediction for each place of the source that may be the answer
    of_texts: ClassVar[bool] = False  # predicted from several texts of one source
    wanted: ClassVar[bool] = True  # False: training data have none
    keys: ClassVar[tuple[tuple[str, ...], str] | None] = None  # usual ones of a source's texts and of it, in .jsonl
    bare: ClassVar[tuple[type, ...]] = ()  # the numbers that it may be in .jsonl, without quotes
    vectors: ClassVar[bool] = False  # it is told by the body's vectors alone, with no head over them
    best: ClassVar[str] = "loss"  # the metric that training steers by, by default
    usual: ClassVar[tuple[str, ...]] = ()  # metrics that are reported by default
    steering: ClassVar[tuple[str, ...]] = ()  # those of them that a validation takes

    @property
    def chained(self) -> bool:
        """Whether what is predicted of a word depends on what is of the word before."""
        return False

    @property
    def projects(self) -> bool:
        """Whether the dense layer over the first vector, where there is one, is there in use as well."""
        return True

    @property
    def pool(self) -> Literal["first", "mean", "attention"] | None:
        """Which vector stands for the whole source; None: the one that is usual for the body."""
        return None

    metrics: list[str] | None = Field(
        None, description="metrics that `regard evaluate` reports (default: the usual ones for this kind of target)"
    )


class PooledSettings(TargetSettings):
    """What every target has that is told by one vector of the whole source."""

    pooling: Literal["mean", "attention"] | None = Field(
        None,
        description="the vector of the whole source: the mean of all, or a mean by weights that a score of each gives "
        "(attention; SeqPool, Hassani et al. 2021) (default: the class token; the first of a Transformer over text; "
        "the last of a decoder; the summary of others)",
    )

    @property
    def pool(self) -> Literal["first", "mean", "attention"] | None:
        return self.pooling
