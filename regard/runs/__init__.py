"""Training what a config says, in its folder."""

from regard.runs.training import Stopped as Stopped
from regard.runs.training import prepare as prepare
from regard.runs.training import train as train
