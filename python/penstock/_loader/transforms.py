"""Which transforms of torchvision become of pictures here, and how."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .._errors import InvalidArgument

Operation = tuple[str, tuple[float, ...]]


class Recipe(NamedTuple):
    """What becomes of a picture: operations as `_core.picture_field` takes them, and then value * scale + shift in the
    type `to`, with a number for all channels or one for each. `to`: None for uint8, as it is decoded. `is_tensor`: the
    transforms end with a tensor, and not with an image of Pillow. `erases_image`: they erase before that, which
    torchvision does not."""

    operations: tuple[Operation, ...] = ()
    bicubic: bool = False
    to: str | None = None
    scale: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    is_tensor: bool = False
    erases_image: bool = False


class NotDone(InvalidArgument):
    """A transform that is not done here. The text names it, and can follow "since"."""


def recipe_of(transforms: Any) -> Recipe:
    """The recipe of a transform of torchvision, or a list of them. Raises NotDone."""
    recipe, filters = Recipe(), set()
    for part in _parts_of(transforms):
        name = type(part).__name__
        if not type(part).__module__.startswith("torchvision.transforms") or name not in _DONE:
            raise NotDone(f"{name} is not one of {', '.join(_DONE)} of torchvision")
        try:
            recipe = _DONE[name](recipe, part)
            if hasattr(part, "interpolation"):
                filters.add(_filter_of(part, recipe.is_tensor))
        except NotDone:
            raise
        except (AttributeError, TypeError, ValueError):
            raise NotDone(f"the parameters of {name} are not known here") from None
    if len(filters) > 1:
        raise NotDone("the transforms resize by bilinear and by bicubic interpolation, and one is used for all")
    return recipe._replace(bicubic=filters == {"bicubic"})


def _parts_of(transforms: Any) -> Iterable[Any]:
    if type(transforms).__name__ == "Compose" and type(transforms).__module__.startswith("torchvision."):
        transforms = transforms.transforms
    if not isinstance(transforms, list | tuple):
        return [transforms]
    return [part for transform in transforms for part in _parts_of(transform)]


def _filter_of(part: Any, is_tensor: bool) -> str:
    name = str(getattr(part.interpolation, "value", part.interpolation))
    if name not in ("bilinear", "bicubic"):
        raise NotDone(f"{type(part).__name__} resizes by {name} interpolation, not bilinear or bicubic")
    if is_tensor and not part.antialias:
        raise NotDone(f"{type(part).__name__} has antialias=False, and pictures are resized with antialiasing")
    return name


def _with(recipe: Recipe, part: Any, *numbers: float, name: str = "") -> Recipe:
    name = name or type(part).__name__
    keeps_values = name in ("CenterCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "RandomErasing")
    if recipe.to is not None and not keeps_values:
        raise NotDone(f"{type(part).__name__} comes after the conversion to {recipe.to}: put it before")
    return recipe._replace(operations=(*recipe.operations, (name, tuple(map(float, numbers)))))


def _pair(part: Any) -> tuple[int, int]:
    size = part.size
    if isinstance(size, int):
        return size, size
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def _resized_crop(recipe: Recipe, part: Any) -> Recipe:
    return _with(recipe, part, *_pair(part), *part.scale, *part.ratio)


def _resize(recipe: Recipe, part: Any) -> Recipe:
    if part.max_size is not None or part.size is None:
        raise NotDone("Resize has a max_size")
    if isinstance(part.size, int) or len(part.size) == 1:
        return _with(recipe, part, _pair(part)[0], name="ResizeShorterSide")
    return _with(recipe, part, *_pair(part))


def _crop(recipe: Recipe, part: Any) -> Recipe:
    padding = part.padding or 0
    padding = {padding} if isinstance(padding, int) else set(padding)
    if len(padding) > 1 or part.padding_mode != "constant" or part.pad_if_needed or part.fill not in (0, None):
        raise NotDone("RandomCrop pads otherwise than by equally many black pixels at each side")
    return _with(recipe, part, *_pair(part), padding.pop())


def _chance(recipe: Recipe, part: Any) -> Recipe:
    return _with(recipe, part, part.p)


def _jitter(recipe: Recipe, part: Any) -> Recipe:
    factors = [(1, 1) if factor is None else factor for factor in (part.brightness, part.contrast, part.saturation)]
    return _with(recipe, part, *itertools.chain(*factors, (0, 0) if part.hue is None else part.hue))


def _erase(recipe: Recipe, part: Any) -> Recipe:
    if part.value is None or isinstance(part.value, str):
        raise NotDone("RandomErasing has random values, and one color is done")
    value = tuple(part.value) if isinstance(part.value, list | tuple) else (part.value,)
    each = [numbers * (3 // len(numbers)) for numbers in (value, recipe.scale or (1,), recipe.shift or (0,))]
    colors = [round((value - shift) / scale) for value, scale, shift in zip(*each, strict=False)]
    if len(colors) != 3 or not all(0 <= color <= 255 for color in colors):
        raise NotDone(f"RandomErasing has the value {part.value}, which is not that of a pixel")
    recipe = recipe._replace(erases_image=recipe.erases_image or not recipe.is_tensor)
    return _with(recipe, part, part.p, *part.scale, *part.ratio, *colors)


def _scaled_tensor(recipe: Recipe, part: Any) -> Recipe:
    return recipe._replace(is_tensor=True, to="float32", scale=(1 / 255,))


def _dtype(recipe: Recipe, part: Any) -> Recipe:
    dtype = str(part.dtype).removeprefix("torch.")
    if dtype == "uint8" and recipe.to is None:
        return recipe
    if dtype != "float32" or recipe.to is not None or not recipe.is_tensor:
        raise NotDone(f"{type(part).__name__} converts to {dtype}, and only a uint8 tensor is converted, to float32")
    return _scaled_tensor(recipe, part) if getattr(part, "scale", True) else recipe._replace(to="float32")


def _normalize(recipe: Recipe, part: Any) -> Recipe:
    if recipe.to is None or recipe.shift:
        raise NotDone("Normalize comes twice, or before the conversion to float32")
    scale = recipe.scale[0] if recipe.scale else 1.0
    return recipe._replace(
        scale=tuple(scale / float(std) for std in part.std),
        shift=tuple(-float(mean) / float(std) for mean, std in zip(part.mean, part.std, strict=True)),
    )


_DONE: dict[str, Callable[[Recipe, Any], Recipe]] = {
    "RandomResizedCrop": _resized_crop,
    "Resize": _resize,
    "CenterCrop": lambda recipe, part: _with(recipe, part, *_pair(part)),
    "RandomCrop": _crop,
    "RandomHorizontalFlip": _chance,
    "RandomVerticalFlip": _chance,
    "ColorJitter": _jitter,
    "RandomGrayscale": _chance,
    "RandomErasing": _erase,
    "ToTensor": _scaled_tensor,
    "PILToTensor": lambda recipe, _: recipe._replace(is_tensor=True),
    "ToImage": lambda recipe, _: recipe._replace(is_tensor=True),
    "ConvertImageDtype": _dtype,
    "ToDtype": _dtype,
    "Normalize": _normalize,
}
