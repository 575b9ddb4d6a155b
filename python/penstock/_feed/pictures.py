"""The pictures of an ImageFolder of torchvision, decoded natively: feed(..., pictures=True)."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from .. import _core
from .._errors import InvalidArgument
from .._loader.conversions import channel_axis
from .._loader.transforms import NotDone, Recipe, recipe_of


class Folder(NamedTuple):
    """What the samples of an ImageFolder follow from."""

    samples: list[tuple[str, int]]
    recipe: Recipe


class PictureRows(NamedTuple):
    """A field that decodes the pictures of a folder, its options as a loader takes them, and the targets."""

    folder: Folder
    field: _core.FileField
    options: list[Any]
    targets: Any


def folder_of(dataset: Any) -> Folder | str:
    """The folder, or why its pictures cannot be decoded here."""
    datasets = sys.modules.get("torchvision.datasets")
    if datasets is None or type(dataset) is not datasets.ImageFolder:
        return f"its dataset is a {type(dataset).__name__}, and not an ImageFolder of torchvision, or a Subset of one"
    if dataset.loader is not datasets.folder.default_loader or sys.modules["torchvision"].get_image_backend() != "PIL":
        return "its ImageFolder has a loader of its own"
    if dataset.target_transform is not None:
        return "its ImageFolder has a target_transform"
    try:
        recipe = recipe_of([] if dataset.transform is None else dataset.transform)
    except NotDone as error:
        return str(error)
    if recipe.erases_image:
        return "RandomErasing comes before the conversion to a tensor: put it behind"
    return (
        Folder(dataset.samples, recipe) if recipe.is_tensor else "its ImageFolder gives images of Pillow, not tensors"
    )


def folder_below(dataset: Any) -> Folder | str:
    """The same for the dataset of which this is a Subset, if it is one."""
    while type(dataset).__name__ == "Subset":
        dataset = dataset.dataset
    return folder_of(dataset)


def picture_rows(dataset: Any, known: dict[str, PictureRows]) -> PictureRows | str:
    """The rows of an ImageFolder, or why there are none. Those of the latest call are kept in `known`."""
    folder = folder_of(dataset)
    if isinstance(folder, str):
        return folder
    if "rows" not in known or known["rows"].folder != folder:
        try:
            known["rows"] = _rows_of(folder)
        except InvalidArgument as error:
            return str(error)
    return known["rows"]


def _rows_of(folder: Folder) -> PictureRows:
    paths = [path for path, _ in folder.samples]
    others = {os.path.splitext(path)[1].lower() for path in paths}.difference(_core.decoded_suffixes())
    if others:
        raise InvalidArgument(
            f"its ImageFolder has files of the kind {min(others)}, which this build of penstock does not decode"
        )
    recipe = folder.recipe
    field = _core.picture_field(_core.EncodedPictures.files(paths), *recipe[:2], 0, False, None)
    options = []
    if recipe.to is not None:
        scale, shift = list(recipe.scale), list(recipe.shift)
        axis = channel_axis("image", tuple(field.shape[1:]), max(scale, shift, key=len))
        options.append(("image", recipe.to, scale, shift, axis))
    torch = sys.modules["torch"]
    kept = folder._replace(samples=list(folder.samples))  # the dataset's own list may change
    return PictureRows(kept, field, options, torch.tensor([target for _, target in folder.samples]))


def not_decoded(why: str) -> InvalidArgument:
    return InvalidArgument(f"This feed cannot decode the pictures of its loader: {why}. Leave pictures=True out.")
