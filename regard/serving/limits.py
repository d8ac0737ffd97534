"""What the server allows a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field, JsonValue, model_validator

from regard.section import Section
from regard.serving.messages import Refused, Source

OURS = ("precision", "batch_tokens", "max_source", "stride")  # search settings that are not a request's to change


class Limits(Section):
    """Limits of a request; whatever exceeds them is refused before a model sees it."""

    body_bytes: int = Field(32 * 2**20, ge=1024, le=2**32, description="maximum bytes of a request")
    all_bytes: int = Field(512 * 2**20, ge=1024, le=2**40, description="maximum bytes of all requests at once")
    connections: int = Field(1000, ge=1, le=10**6, description="maximum connections at once")
    inputs: int = Field(256, ge=1, le=10**6, description="maximum inputs of a request")
    characters: int = Field(100_000, ge=1, le=10**9, description="maximum characters of all texts of a request")
    beam: int = Field(16, ge=1, le=1000, description="maximum beam size, and maximum samples (mbr)")
    nbest: int = Field(16, ge=1, le=1000, description="maximum outputs of an input")
    max_length: int = Field(1024, ge=1, le=10**6, description="maximum tokens of an output")
    alternatives: int = Field(20, ge=0, le=1000, description="maximum alternatives of a token")
    attributed: int = Field(
        48, ge=1, le=10**4, description="maximum tokens of a source, and of a target, for gradient and erasure"
    )
    pixels: int = Field(
        20_000_000, ge=1, le=10**8,
        description="maximum pixels of an image, of a frame of a video, or of all images in an answer",
    )  # fmt: skip
    clip_pixels: int = Field(1_000_000_000, ge=1, le=10**10, description="maximum pixels of all frames of a video")
    seconds: float = Field(120.0, gt=0, le=86_400, description="maximum length of a recording or video, in seconds")
    queue: int = Field(512, ge=1, le=10**6, description="maximum inputs of a model that wait or are being decoded")
    timeout: float = Field(120.0, gt=0, le=86_400, description="seconds until a request is answered or given up")
    header_timeout: float = Field(
        10.0, gt=0, le=3600, description="seconds in which the headers of a request must arrive"
    )
    body_timeout: float = Field(30.0, gt=0, le=3600, description="seconds in which a request must arrive")
    send_timeout: float = Field(
        60.0, gt=0, le=3600, description="seconds in which a client must read an answer, or an event of a stream"
    )
    per_minute: int = Field(0, ge=0, le=10**7, description="requests per minute for each key or address (0: unlimited)")
    burst: int = Field(60, ge=1, le=10**6, description="how many of these may come at once")

    @model_validator(mode="after")
    def _fits(self) -> Limits:
        if self.queue < self.inputs:
            raise ValueError(
                f"queue ({self.queue}) is less than inputs ({self.inputs}): no such request could be taken"
            )
        if self.all_bytes < self.body_bytes:
            raise ValueError(f"all_bytes ({self.all_bytes}) is less than body_bytes ({self.body_bytes})")
        return self

    def check_inputs(self, count: int) -> None:
        """Refuse more inputs than a request may have."""
        if count > self.inputs:
            raise Refused(413, "too_large", f"{count} inputs are more than {self.inputs}, the limit here")

    def check_sources(self, sources: Sequence[Source], characters: int = 0) -> None:
        """Refuse more inputs, or more characters in them and beside them, than a request may have."""
        self.check_inputs(len(sources))
        flat = [one for source in sources for one in (source if isinstance(source, list) else [source])]
        characters += sum(len(one) for one in flat if isinstance(one, str))
        if characters > self.characters:
            raise Refused(
                413, "too_large", f"{characters:,} characters are more than {self.characters:,}, the limit here"
            )

    def check_search(self, search: Mapping[str, JsonValue], *, contrastive: bool = False) -> None:
        """Refuse search settings that are the server's own, or beyond its limits. `contrastive`: whether the search of
        the model itself is."""
        bounds = {"beam": self.beam, "nbest": self.nbest, "mbr": self.beam, "groups": self.beam}
        bounds |= {"max_length": self.max_length, "min_length": self.max_length}
        if search.get("contrastive", contrastive):
            bounds["top_k"] = self.beam
        for name, value in search.items():
            if name in OURS:
                raise Refused(422, "unprocessable", f"search.{name} is set by the server; leave it out")
            if name not in bounds:
                continue
            if not isinstance(value, int | float):  # a text such as "1000" would be read as one
                raise Refused(422, "unprocessable", f"search.{name} should be a number")
            if value > bounds[name]:
                raise Refused(
                    422, "unprocessable", f"search.{name}={value} is more than {bounds[name]}, the limit here"
                )
