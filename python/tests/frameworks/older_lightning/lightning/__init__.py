"""The newer name of pytorch_lightning, where only that is installed."""

import pytorch_lightning as pytorch  # noqa: F401
from pytorch_lightning import *  # noqa: F403
