"""Pickles name an object by its module. Those that were made when all modules lay in one folder find it here."""

from __future__ import annotations

import sys

from . import _doctor, _feed, _loader
from ._doctor import examination, timings, verdict
from ._feed import workers, wrapper
from ._loader import loader, sampler, shared_dataset
from ._move import modules, nests, saving, transfers, weights

vars(_doctor).update(diagnose=examination.diagnose)
vars(_feed).update(Feed=wrapper.Feed, feed=wrapper.feed)
vars(_loader).update(Loader=loader.Loader, _again=loader._again)
_moved = (modules, nests, sampler, saving, shared_dataset, timings, transfers, verdict, weights)
_found = {module.__name__.rpartition(".")[2]: module for module in _moved} | {"worker_feed": workers}
sys.modules.update({f"{__package__}._{name}": module for name, module in _found.items()})
