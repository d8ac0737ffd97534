"""What the server allows a request."""

from __future__ import annotations

from pydantic import Field

from regard.section import Section


class Limits(Section):
    """What a request may ask for; what is beyond is refused before a model sees it."""

    body_bytes: int = Field(32 * 2**20, ge=1024, le=2**32, description="most bytes of a request")
    inputs: int = Field(256, ge=1, le=10**6, description="most inputs of a request")
    characters: int = Field(100_000, ge=1, le=10**9, description="most characters of all texts of a request")
    beam: int = Field(16, ge=1, le=1000, description="widest beam, and most samples (mbr)")
    nbest: int = Field(16, ge=1, le=1000, description="most outputs of an input")
    max_length: int = Field(1024, ge=1, le=10**6, description="most tokens of an output")
    alternatives: int = Field(20, ge=0, le=1000, description="most alternatives of a token")
    pixels: int = Field(20_000_000, ge=1, le=10**8, description="most pixels of a picture, or of a frame of a clip")
    seconds: float = Field(120.0, gt=0, le=86_400, description="longest recording or clip, in seconds")
    queue: int = Field(512, ge=1, le=10**6, description="most inputs of a model that wait or are worked on")
    timeout: float = Field(120.0, gt=0, le=86_400, description="seconds until a request is answered, or given up")
    body_timeout: float = Field(30.0, gt=0, le=3600, description="seconds in which a request has to arrive")
    per_minute: int = Field(0, ge=0, le=10**7, description="requests a minute of each key or address (0: any number)")
    burst: int = Field(60, ge=1, le=10**6, description="of these, requests at once")
