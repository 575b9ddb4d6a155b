"""Of `penstock run --feed`, in a folder in front of the others: has penstock follow the program's DataLoaders, once it
makes one. Imports the sitecustomize that would have been imported."""

import sys

_HERE = __file__.rpartition("/")[0]


def _follow(module):
    """Called once torch.utils.data.dataloader is imported. penstock is imported with the first DataLoader."""
    loader = module.DataLoader
    plain = loader.__init__

    def __init__(self, *arguments, **options):
        loader.__init__ = plain
        try:
            from penstock._feed.ahead import follow

            follow(module, _HERE)
        except Exception as error:
            sys.stderr.write("penstock run: --feed does nothing with this Python's PyTorch and penstock: %s\n" % error)
        loader.__init__(self, *arguments, **options)

    __init__.__wrapped__ = plain  # for its signature
    loader.__init__ = __init__


class _Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch.utils.data.dataloader":
            return None
        sys.meta_path.remove(cls)
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                _follow(module)

            spec.loader.exec_module = exec_module
        return spec


if _HERE in sys.path:
    sys.path.remove(_HERE)
sys.meta_path.insert(0, _Finder)
_own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401, the user's
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _own
