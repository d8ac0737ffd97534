"""Every error that Regard raises on purpose.

    RegardError
    ├── ConfigError   a setting is unknown, of the wrong kind, or clashes with another
    ├── DataError     a line or a file cannot be read as what it should be
    ├── ModelError    a model folder is missing a part, or is not one of ours
    │   └── DamagedError   a file is not what was written: cut off, or changed since
    ├── OutputError   something is already where the result should go, or is in use
    └── TrainingError training cannot go on, such as a loss that is no number

The command line prints the message of any of these without a traceback and leaves with status 2. A message names the
thing, its value or place, and what would do.
"""


class RegardError(Exception):
    """The base of all errors that tell the user something."""


class ConfigError(RegardError):
    """A setting is unknown, of the wrong kind, or clashes with another."""


class DataError(RegardError):
    """A line or a file cannot be read as what it should be."""


class ModelError(RegardError):
    """A model folder is missing a part, or is not one of ours."""


class DamagedError(ModelError):
    """A file is not what was written: cut off, or changed since."""


class OutputError(RegardError):
    """Something is already where the result should go, or is in use by another process."""


class TrainingError(RegardError):
    """Training cannot go on, such as a loss that is no number."""
