"""Who may ask, and how often: API keys, of which a file holds hashes alone, and a token bucket for each caller."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from regard.artifacts import write_text
from regard.errors import ConfigError
from regard.serving.limits import Limits
from regard.serving.messages import Refused

ADMIN = "admin"
LINE = re.compile(r"([0-9a-f]{64})\s+(\S{1,100})(?:\s+(admin))?")
MOST = 100_000  # callers whose buckets are remembered


@dataclass(frozen=True)
class Key:
    """A key that is known: its hash, whose it is, and whether it may reload models."""

    digest: str
    name: str
    admin: bool = False


@dataclass
class Bucket:
    """How many requests a caller has left, and when that was counted."""

    left: float
    at: float


class Access:
    """Keys and rates. Without a file of keys everybody may ask."""

    def __init__(self, keys: list[Key] | None, limits: Limits) -> None:
        self.keys, self.limits = keys, limits
        self._buckets: dict[str, Bucket] = {}

    @property
    def has_admin(self) -> bool:
        """Whether there is a key that may reload models."""
        return any(key.admin for key in self.keys or ())

    def identify(self, key: str | None) -> Key | None:
        """Whose key it is; None where none are asked for. One that is unknown, or missing, is refused."""
        if self.keys is None:
            return None
        digest, found = _digest(key or ""), None
        for known in self.keys:  # all of them, so that time tells nothing
            if hmac.compare_digest(known.digest, digest):
                found = known
        if found is None:
            what = "is unknown" if key else "is missing"
            raise Refused(401, "unauthorized", f"the API key {what}; send it as 'Authorization: Bearer KEY'")
        return found

    def admit(self, key: str | None, address: str) -> None:
        """See that a caller may ask now."""
        known = self.identify(key)
        self._count(f"key {known.name}" if known else address)

    def admit_admin(self, key: str | None) -> None:
        """See that a caller may change what is served."""
        known = self.identify(key) if self.has_admin else None
        if known is None or not known.admin:
            raise Refused(403, "forbidden", "this takes a key that was made with --new-key NAME --admin")

    def _count(self, caller: str) -> None:
        """Take a request out of a caller's bucket, which fills up at an even rate."""
        rate, most = self.limits.per_minute / 60, float(self.limits.burst)
        if not rate:
            return
        now = time.monotonic()
        bucket = self._buckets.pop(caller, None) or Bucket(most, now)
        bucket.left, bucket.at = min(most, bucket.left + rate * (now - bucket.at)), now
        self._buckets[caller] = bucket  # the last to have asked stands last
        if len(self._buckets) > MOST:
            del self._buckets[next(iter(self._buckets))]
        if bucket.left < 1:
            wait = (1 - bucket.left) / rate
            raise Refused(429, "rate_limited", f"more than {self.limits.per_minute} requests a minute", wait)
        bucket.left -= 1


def read_keys(path: Path) -> list[Key]:
    """The keys of a file: a line each, the SHA-256 of the key, a name, and `admin` if it is one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"no file of keys {path}; `regard serve --new-key NAME --keys {path}` makes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys {path} cannot be read: {error}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise ConfigError(f"{path}:{number} is no key; a line is SHA-256, NAME and, if it may reload models, admin")
        keys.append(Key(match[1], match[2], match[3] is not None))
    if not keys:
        raise ConfigError(f"{path} holds no keys, so nobody could ask; `regard serve --new-key NAME` adds one")
    return keys


def new_key(path: Path, name: str, *, admin: bool = False) -> str:
    """A key that is written nowhere: the file gets its hash."""
    if not re.fullmatch(r"[^\s#]\S{0,99}", name):
        raise ConfigError(f"'{name[:100]}' is no name for a key; up to 100 characters without blanks will do")
    known = read_keys(path) if path.exists() and path.stat().st_size else []
    if any(key.name == name for key in known):
        raise ConfigError(f"{path} has a key called '{name}'; delete its line first, or take another name")
    key = f"rg-{secrets.token_urlsafe(32)}"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    line = f"{_digest(key)} {name}{f' {ADMIN}' if admin else ''}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, before + ("\n" if before and not before.endswith("\n") else "") + line)
    path.chmod(0o600)
    return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
