"""Every setting of Regard, typed, validated and documented, as one `Config`, and what of it may go together.

Those of the network are in `model_settings.py`, `encoder_settings.py`, `decoder_settings.py` and `stem_settings.py`,
those of data, training and search in `data_settings.py`, `training_settings.py` and `search_settings.py`, those of each
kind of source and target with its class. `config.py` reads files of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from regard.data_settings import Data
from regard.decoder_settings import AwdLstmSettings, RecurrentDecoderSettings
from regard.model_settings import ModelSettings
from regard.registry import METRICS, MODALITIES, STEMS, TARGETS
from regard.search_settings import Search
from regard.section import Kind, Section, SideSettings, TargetSettings, TokenSettings
from regard.stem_settings import StemSettings
from regard.training_settings import Start, Training

Source = SerializeAsAny[SideSettings]
NATIVE = ("unigram", "bpe", "char", "word", "byte")  # kinds of tokens that are learnt
MIXED = "training.objective.mixup and cutmix are for one source of kind image and a target of kind label; set them to 0"


class Config(Section):
    """All settings of a run."""

    preset: str | None = Field(None, description="preset to start from (see `regard models`)")
    run: str = Field("runs/model", description="folder for the trained model, checkpoints and logs")
    data: Data = Field(default_factory=Data)
    source: Annotated[Source | list[Source], Kind(MODALITIES, "text", several=True)] = Field(
        {},  # type: ignore[assignment]  # validated, as all defaults are
        description="what the model reads; for several sources, a list",
    )
    target: Annotated[SerializeAsAny[TargetSettings], Kind(TARGETS, "text")] = Field(
        {},
        description="what the model predicts",  # type: ignore[assignment]
    )
    tokens: TokenSettings = Field(
        default_factory=TokenSettings, description="the vocabulary of all text that has no tokens of its own"
    )
    model: ModelSettings = Field(default_factory=ModelSettings)
    start: Start = Field(default_factory=Start)
    training: Training = Field(default_factory=Training)
    search: Search = Field(default_factory=Search)

    @staticmethod
    def parse(settings: dict[str, Any], base: str | Path = ".") -> Config:
        """Settings as in a config file, with paths relative to `base`; all that is wrong is said at once."""
        if not isinstance(settings, dict):
            raise TypeError(f"settings should be a dict of sections, not {type(settings).__name__}")
        from regard.config import parse, resolve_paths  # reading stands after what is read

        return resolve_paths(parse(settings), Path(base))

    @staticmethod
    def load(path: str | Path, overrides: list[str] | None = None) -> Config:
        """A config file, with `a.b=c` overrides."""
        from regard.config import load

        return load(path, overrides)

    @property
    def sources(self) -> Sequence[SideSettings]:
        """Every source, in order."""
        return self.source if isinstance(self.source, list) else [self.source]

    def stem(self, number: int) -> StemSettings:
        """The stem that reads a source, or, where there is none, the target."""
        side = self.sources[number]
        chosen: StemSettings | None = self.model.encoder_of(number).stem
        return chosen or STEMS.settings(side.stem or "tokens")()

    @property
    def denoises(self) -> bool:
        """There is no source: an encoder reads what noise leaves of the target."""
        alone = self.model.encoder_only or self.model.decoder_only
        return self.training.objective.corrupts and not alone and not self.sources[0].given

    @property
    def spelled(self) -> bool:
        """There is no source: an encoder reads the words of the target by their characters."""
        return not self.sources[0].given and not self.model.decoder_only and "words" in self.stem(0).reads

    @property
    def one_vocabulary(self) -> bool:
        """The first source and the target are text of the same tokens."""
        first = self.sources[0]
        if self.denoises:
            return self.target.text
        own = first.own_tokens is None and self.target.own_tokens is None
        return first.text and not first.spelled and self.target.text and own

    @property
    def metric(self) -> str:
        """What 'best' means here."""
        usual = [*self._scored_by, self.target.best][0] if self.sources[0].given else "loss"
        return self.training.metric or usual

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """What is reported, where target.metrics does not say: of text, what its source is usually scored by."""
        return self._scored_by or self.target.usual

    @property
    def steering_metrics(self) -> tuple[str, ...]:
        """What a validation takes."""
        return self._scored_by or self.target.steering

    @property
    def questioned(self) -> bool:
        """Whether a text is written of a picture or a video and a text, such as a question that several people
        answered."""
        seen = any("cider" in side.scored_by for side in self.sources)
        return self.target.text and seen and any(side.text for side in self.sources)

    @property
    def _scored_by(self) -> tuple[str, ...]:
        """By what a text is scored that is written of one kind of source; of others beside it, as any text is."""
        usual = {side.scored_by for side in self.sources}
        return usual.pop() if self.target.text and len(usual) == 1 else ()

    @field_validator("source", mode="before")
    @classmethod
    def _one_source_is_no_list(cls, source: Any) -> Any:
        return source[0] if isinstance(source, list) and len(source) == 1 else source

    @model_validator(mode="after")
    def _sections_fit(self) -> Config:
        of_target = self._text_clashes() if self.target.written else self._head_clashes()
        clashes = self._token_clashes(), self._noise_clashes(), self._source_clashes(), self._start_clashes()
        for what in chain(*clashes, of_target, self._metric_clashes()):
            raise ValueError(what)
        return self

    def _token_clashes(self) -> Iterator[str]:
        for side in (*self.sources, self.target):
            tokens = (side.own_tokens or self.tokens) if side.text else self.tokens
            if tokens.sampling and tokens.kind not in ("unigram", "bpe"):
                yield f"tokens.sampling needs kind unigram or bpe, not {tokens.kind}"
        if self.model.share_embeddings and not self.one_vocabulary:
            yield (
                "model.share_embeddings needs a text as source and as target, and one vocabulary for both; set it to "
                "false, or leave out their own tokens"
            )

    def _source_clashes(self) -> Iterator[str]:
        """Each source needs an encoder whose stem can read it."""
        model, sources = self.model, self.sources
        if self.data.prefixes and sources and (not sources[0].text or sources[0].spelled):
            yield (
                f"data.corpora has a prefix ({self.data.prefixes[0]}), which stands before a source of text, and "
                f"source.kind is '{sources[0].kind}'; leave it out"
            )
        if not sources:
            yield "source is an empty list; for none write source: {kind: none}"
        if len(sources) > 1:
            if not all(side.given for side in sources):
                yield "of several sources none can be of kind none; leave it out"
            if model.decoder_only or self.target.of_words:
                yield "several sources need an encoder (model.encoder.kind), and a target of the whole, not of words"
        if isinstance(model.encoder, list) and len(model.encoder) != len(sources):
            yield f"model.encoder lists {len(model.encoder)} encoders for {len(sources)} sources; give one each"
        if model.joint is not None and len(sources) < 2:
            yield "model.joint is over the vectors of several sources; here is one"
        if model.share_layers and len(sources) > 1:
            yield "model.share_layers is for one source, whose encoder the decoder shares; set it to false"
        if model.share_encoder and (len(sources) < 2 or isinstance(model.encoder, list)):
            yield "model.share_encoder is for several sources and one encoder; set it to false"
        if model.share_encoder and any(
            side != sources[0].model_copy(update={"column": side.column}) for side in sources
        ):
            yield "model.share_encoder needs sources of the same settings; set it to false"
        if model.decoder_only:
            if sources[0].given and (not sources[0].text or sources[0].spelled):
                yield f"model.encoder.kind none reads text, not source.kind '{sources[0].kind}'"
            if sources[0].given and self.target.written and not self.one_vocabulary:
                yield (
                    "model.encoder.kind none reads source and target as one text, so both need one vocabulary; leave "
                    "out their own tokens"
                )
            return
        if not sources[0].given and not model.encoder_only and not self.denoises:
            yield (
                "source.kind none leaves the encoder nothing to read; set model.encoder.kind none (a language model), "
                "model.decoder.kind none (a masked language model) or training.objective.kind denoising or "
                "span_corruption (both, over a text with noise in it)"
            )
        yield from self._spelling_clashes()
        for number, side in enumerate(sources):
            stem, kind = self.stem(number), side.kind if side.given else "words" if self.spelled else "text"
            if kind not in stem.reads:
                yield (
                    f"source.kind '{kind}' and model.encoder.stem.kind '{stem.kind}' clash: that stem reads "
                    f"{' and '.join(stem.reads) or 'nothing'}"
                )
            if what := stem.problem(side):
                yield what

    def _spelling_clashes(self) -> Iterator[str]:
        """Words by their characters have no ids that could be masked or predicted in their place."""
        if self.sources[0].given:
            return
        first = self.model.encoders[0]
        if first.two_way and not self.spelled:
            yield "model.encoder.kind elmo reads words by their characters; set model.encoder.stem.kind characters"
        if self.spelled and not first.two_way:
            yield (
                "model.encoder.stem.kind characters reads plain text (source.kind none) under model.encoder.kind elmo "
                "alone, which predicts words from both sides; set that, or stem.kind tokens"
            )
        if first.two_way and (self.target.own_tokens or self.tokens).kind != "word":
            yield "model.encoder.kind elmo predicts words; set tokens.kind word"
        if first.two_way and self.model.generator is not None:
            yield "model.generator fills in masks, and model.encoder.kind elmo has none; leave it out"
        extra = [name for name in ("mix", "over", "beside") if getattr(first, name, None)]
        if first.two_way and extra:
            yield (
                f"model.encoder.{extra[0]} belongs to a task that uses the language models (start.encoder), and there "
                "is none here to learn it; leave it out"
            )

    def _noise_clashes(self) -> Iterator[str]:
        """An objective that makes the source needs both parts, and no other source."""
        objective, model = self.training.objective, self.model
        masked = model.encoder_only and not self.sources[0].given and not self.spelled
        if objective.masking != "tokens" and not masked:
            yield f"training.objective.masking '{objective.masking}' is for masked language models; set it to tokens"
        if not objective.corrupts:
            return
        what = f"training.objective.kind '{objective.kind}' makes the source from the text itself"
        if self.sources[0].given:
            yield f"{what}; set source.kind none, not {self.sources[0].kind}"
        if model.encoder_only or model.decoder_only:
            part = "decoder" if model.encoder_only else "encoder"
            yield f"{what}, for an encoder and a decoder, but model.{part}.kind is none"
        tokens, start = self.target.own_tokens or self.tokens, self.start
        anew = tokens.kind in NATIVE and not (start.model or start.encoder or start.decoder)
        if objective.kind == "span_corruption" and anew and tokens.sentinels < 2:
            yield (
                f"training.objective.kind 'span_corruption' needs sentinels for what is missing, and tokens.sentinels "
                f"is {tokens.sentinels}; set it to 100, as T5 has"
            )

    def _text_clashes(self) -> Iterator[str]:
        """What is asked of a model that writes text."""
        model, objective, given = self.model, self.training.objective, self.sources[0].given
        if model.generator is not None and given:
            yield f"model.generator reads plain text; set source.kind none, not {self.sources[0].kind}"
        if model.encoder_only:
            if given and not model.ctc:
                yield (
                    f"model.decoder.kind none needs source.kind none (lines of text), not {self.sources[0].kind}; or "
                    "model.ctc: true, to read text off the encoder"
                )
            if model.ctc and not given:
                yield "model.ctc reads text off a source, but source.kind is none; set it to false"
            if not model.ctc and getattr(model.encoder, "bidirectional", True) is False:
                yield (
                    "a masked language model (decoder.kind none) reads from both sides; set encoder.bidirectional: true"
                )
            if objective.kind in ("scheduled_sampling", "minimum_risk"):
                yield f"training.objective.kind '{objective.kind}' needs a decoder"
        yield from self._stream_clashes()
        if not self.target.text:
            if not given:
                yield f"target.kind '{self.target.kind}' is made from a source, but source.kind is none"
            if model.ctc:
                yield f"model.ctc reads text off a source, and target.kind is '{self.target.kind}'; set it to false"
            if objective.kind == "minimum_risk":
                yield f"training.objective.kind 'minimum_risk' compares texts, and target.kind is '{self.target.kind}'"
        if objective.agreement and (model.output != "full" or objective.sampled):
            yield "training.objective.agreement compares softmaxes over all tokens: output full, sampled 0; set it to 0"
        if objective.sampled and (model.output != "full" or objective.kind == "minimum_risk" or model.ctc):
            yield "training.objective.sampled is for model.output full, without ctc or minimum_risk; set it to 0"
        for name in ("sampled", "agreement"):
            if model.generator is not None and getattr(objective, name):
                yield f"training.objective.{name} has no part in what model.generator is for; set it to 0"
        if objective.sampled and getattr(model.decoder, "hard", False):
            yield "training.objective.sampled has no place in what decoder.hard is credited with; set it to 0"
        if objective.agreement and model.ctc:
            yield "training.objective.agreement does not go with model.ctc; set it to 0"
        if getattr(model.decoder, "hard", False) and model.ctc:
            yield "model.ctc does not go with decoder.hard, whose objective has no place for it; set it to false"
        if objective.kind == "minimum_risk" and not objective.likelihood and model.ctc:
            yield (
                "training.objective.kind 'minimum_risk' trains model.ctc with its share of the likelihood alone; set "
                "training.objective.likelihood above 0"
            )
        if model.softmaxes > 1:
            if self.training.label_smoothing:
                yield "model.softmaxes has a loss without label smoothing; set training.label_smoothing to 0"
            if objective.agreement:
                yield "training.objective.agreement compares single softmaxes; set it to 0, or model.softmaxes to 1"
            if model.output != "full" or not model.output_bias or objective.sampled:
                yield "model.softmaxes goes with output full, output_bias true and no sampled tokens; set it to 1"
            if model.encoder_only and model.ctc:
                yield "model.softmaxes is of what a decoder writes, and there is none; set it to 1"
        if self.search.ctc and not model.ctc:
            yield "search.ctc needs a model with model.ctc; leave it out"
        if objective.agreement and getattr(model.decoder, "hard", False):
            yield "training.objective.agreement compares soft passes; decoder.hard draws, so set it to 0"
        if objective.agreement and objective.kind != "likelihood":
            yield f"training.objective.agreement goes with kind 'likelihood'; with '{objective.kind}' set it to 0"
        if not given and objective.kind == "minimum_risk":
            yield "training.objective.kind 'minimum_risk' compares outputs with targets, so it needs a source"
        if not objective.ends:
            yield from self._endless_clashes()
        if objective.language:
            yield "training.objective.language goes with another target.kind than text; set it to 0"
        if objective.mixup or objective.cutmix:
            yield MIXED
        if objective.doubly_stochastic:
            part = model.decoder
            soft = isinstance(part, RecurrentDecoderSettings) and part.context in ("attention", None) and not part.hard
            if not soft or model.decoder_only:
                yield (
                    "training.objective.doubly_stochastic needs soft attention of a recurrent decoder (decoder.kind "
                    "rnn, lstm or gru, context attention, hard false); set it to 0"
                )
            if objective.kind != "likelihood" or objective.agreement:
                yield "training.objective.doubly_stochastic goes with kind 'likelihood' and agreement 0; set it to 0"

    def _endless_clashes(self) -> Iterator[str]:
        """What has to hold where it is not learnt where outputs end."""
        model, objective = self.model, self.training.objective
        endless = "training.objective.ends false"
        if not self.sources[0].given:
            yield f"{endless} is for outputs of a source, and source.kind is none; set it to true"
        elif model.ctc:
            yield f"{endless} does not go with model.ctc, which learns where outputs end all the same; set it to true"
        elif not self.target.text:
            kind = self.target.kind
            yield f"{endless} is for texts, and outputs of target.kind '{kind}' have one length; set it to true"
        elif objective.kind not in ("likelihood", "scheduled_sampling"):
            yield f"{endless} goes with kind likelihood or scheduled_sampling, not '{objective.kind}'; set it to true"
        elif getattr(model.decoder, "hard", False):
            yield f"{endless} does not go with decoder.hard, which is credited with ends too; set it to true"

    def _stream_clashes(self) -> Iterator[str]:
        """A stream is of texts alone; a recurrent decoder carries its state along it."""
        model, objective = self.model, self.training.objective
        stream, awd = getattr(self.target, "stream", None), isinstance(model.decoder, AwdLstmSettings)
        carries = isinstance(model.decoder, RecurrentDecoderSettings | AwdLstmSettings)
        if stream is not None:
            if self.sources[0].given:
                yield "target.stream joins texts that have no source; set source.kind none, or leave it out"
            if (getattr(self.target, "tokens", None) or self.tokens).sampling:
                yield "target.stream needs the same tokens each time; set tokens.sampling to 0"
            if self.data.corpora is not None:
                yield "target.stream is of one corpus; leave out data.corpora, or target.stream"
            if self.denoises or (model.encoder_only and model.encoders[0].two_way):
                yield "target.stream is for language models and masked ones; with what is read here, leave it out"
            if carries and objective.sampled:
                yield "training.objective.sampled does not go with a state that is carried along a stream; set it to 0"
            if carries and (objective.kind != "likelihood" or objective.agreement):
                what = "agreement" if objective.kind == "likelihood" else f"kind '{objective.kind}'"
                yield (
                    f"training.objective.{what} does not go with target.stream and a recurrent decoder, whose state is "
                    "carried from block to block; leave one of them out"
                )
        for name in ("activation", "slowness"):
            if getattr(objective, name) and not (stream and awd):
                yield f"training.objective.{name} needs decoder.kind awd_lstm and target.stream; set it to 0"

    def _head_clashes(self) -> Iterator[str]:
        """A head stands on one body, and predicts something of a source."""
        kind, objective, model = self.target.kind, self.training.objective, self.model
        if model.softmaxes > 1:
            yield f"model.softmaxes is for what writes text; target.kind is '{kind}', so set it to 1"
        if model.encoder_only == model.decoder_only:
            yield (
                f"target.kind '{kind}' stands on one body; set model.decoder.kind none (an encoder reads) or "
                "model.encoder.kind none (a decoder reads)"
            )
        if model.ctc:
            yield f"model.ctc reads text off an encoder, but target.kind is '{kind}'; set it to false"
        if model.generator is not None:
            yield f"model.generator is for plain text, but target.kind is '{kind}'; leave it out"
        if not self.sources[0].given:
            yield f"target.kind '{kind}' says something of a source, but source.kind is none"
        if self.target.of_words and not self.sources[0].text:
            yield (
                f"target.kind '{kind}' says something of each word, and source.kind '{self.sources[0].kind}' has none; "
                "use label or number"
            )
        if objective.kind != "likelihood" or objective.agreement:
            what = "agreement" if objective.kind == "likelihood" else f"kind '{objective.kind}'"
            yield f"training.objective.{what} is for what writes text; target.kind is '{kind}'"
        if self.target.of_texts and (len(self.sources) > 1 or not self.sources[0].text):
            yield f"target.kind '{kind}' is predicted from texts of one source of kind text; name their columns there"
        if self.target.of_texts and (self.sources[0].own_tokens or self.tokens).sampling:
            yield f"target.kind '{kind}' is for tokens that stay the same; set tokens.sampling to 0"
        if self.target.pool == "first" and model.decoder_only:
            yield "target.pooling first is for encoders: the first vector of a decoder has seen nothing; leave it out"
        if not objective.ends:
            yield f"training.objective.ends is for what writes text; target.kind is '{kind}', so set it to true"
        if self.target.vectors and objective.language:
            yield f"training.objective.language goes with a head, and target.kind '{kind}' has none; set it to 0"
        one_picture = [side.kind for side in self.sources] == ["image"]
        if (objective.mixup or objective.cutmix) and not (one_picture and kind == "label"):
            yield MIXED
        if objective.sampled or model.output != "full":
            what = "training.objective.sampled" if objective.sampled else "model.output adaptive"
            yield f"{what} is for many tokens that are written; target.kind is '{kind}'"
        if objective.doubly_stochastic:
            yield f"training.objective.doubly_stochastic is for what writes text; target.kind is '{kind}'"
        if objective.language and not model.decoder_only:
            yield "training.objective.language needs a decoder alone to go on with (model.encoder.kind none)"

    def _start_clashes(self) -> Iterator[str]:
        start = self.start
        if self.training.lora is not None and not (start.model or start.encoder or start.decoder or start.weights):
            yield "training.lora adapts trained weights, and [start] names none; set start.model, or leave lora out"
        if self.training.lora is not None and self.training.ema:
            yield "training.ema keeps a mean of all weights, of which training.lora changes few; set it to 0"
        if self.training.lora is not None and self.training.average > 1:
            yield (
                "training.average takes means of weights, and with training.lora checkpoints hold two factors of what "
                "is added to them: the product of two means is no mean of products; set it to 1"
            )

    def _metric_clashes(self) -> Iterator[str]:
        wanted, metric = self.target.metrics, self.training.metric
        for name in wanted or ():
            if name not in self.usual_metrics and name not in METRICS.kinds:
                yield METRICS.unknown(name)
        if metric in (None, "loss"):
            return
        if not self.sources[0].given:
            yield f"training.metric {metric!r} needs a source; where there is none, use loss"
        steering, reported = self.steering_metrics, self.usual_metrics if wanted is None else wanted
        if metric not in (*reported, *steering):
            taken = dict.fromkeys((*steering, *((wanted or ()) if self.target.written else reported), "loss"))
            yield (
                f"training.metric {metric!r} is not among the metrics of target.kind '{self.target.kind}' that a "
                f"validation takes: {', '.join(taken)}"
            )
