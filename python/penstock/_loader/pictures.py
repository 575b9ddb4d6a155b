"""Pictures: encoded images that the loader's threads decode."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _core
from .._checks import numpy_for, whole
from .._errors import InvalidArgument
from .columns import is_a
from .sampler import UINT64
from .tars import pictures_in_tars
from .transforms import Recipe, recipe_of

_LARGEST = 16384


class Pictures:
    """Encoded images, which a `Loader` decodes, crops, resizes and augments: JPEG, PNG and WebP, others by `decode`.

    By itself it gives batches of images and labels, or of images if there are no labels. Within a tuple, list or dict
    it is a field of images beside the others. An image is uint8 red, green and blue, `3 x height x width`; `to`,
    `scale` and `shift` of the Loader normalise it on the device.

    Args:
        source: A folder with a folder for each class, in the order of torchvision's ImageFolder and with its labels;
            paths of files; encoded images as `bytes`; a column of them: of pyarrow, or an Image column of a Hugging
            Face dataset; the path of a .tar file that WebDataset wrote, or a list of them, whose labels are the members
            `cls`. Files are opened when they are read.
        size: Height and width of an image: 224, unless `augment` lists transforms.
        augment: None: the shorter side is resized to 8/7 of `size`, and the center cropped. "imagenet": torchvision's
            RandomResizedCrop and RandomHorizontalFlip. Or a list of transforms of torchvision, or a Compose, of these:
            RandomResizedCrop, Resize, CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip, and after
            those, ColorJitter, RandomGrayscale, RandomErasing (whose `value` is 0 to 255).
        labels: An array with one for each picture, if the source has none.
        seed: Random numbers follow from it, the epoch, and the number of the sample alone.
        channels_last: Images are `height x width x 3`.
        on_error: "raise" ends the epoch with an Error that names the sample and the file. "black" gives a black image
            with its label, and notes it in `failures`. The Loader's `stats()` count them.
        decode: A function for pictures that this build does not decode. It takes the encoded bytes, and gives uint8
            pixels, `height x width x 3`, as an array or an image of Pillow. The loader's threads call it, several at
            once, with the GIL. It must not use the Loader. Its exception is that of a picture that cannot be read.
        decoder: "host": the loader's threads decode. "device": the GPU decodes baseline JPEGs by nvJPEG (`pip install
            nvidia-nvjpeg`, or `nvidia-nvjpeg-cu12` for CUDA 12), whose pixels differ a little. Not with `memory`,
            `residency`, or transforms that change colors or erase. "auto": the Loader tries both, and keeps to the
            faster.
        memory: Host memory for decoded pictures, 3 bytes a pixel, as a number of bytes or "8GiB". Later epochs crop and
            resize them without decoding them again. They stay as long as this object.

    Attributes:
        labels: An array, or None.
        classes: The names of a folder's classes by label.
        failures: What was wrong with each sample that is black, for up to 1,000.

    Raises:
        InvalidArgument: Arguments do not fit.
        Error: A folder or tar file cannot be read.
        Unsupported: From the Loader, if the library of its `decoder` is missing.

    Examples:
        >>> pictures = penstock.Pictures("imagenet/train", augment="imagenet")
        >>> batches = penstock.Loader(pictures, 256, shuffle=True, to="float32", scale=1 / 255)
    """

    dtype = "uint8"

    def __init__(
        self,
        source: Any,
        size: int | None = None,
        augment: Any = None,
        *,
        labels: Any = None,
        seed: int = 0,
        channels_last: bool = False,
        on_error: str = "raise",
        decode: Callable[[bytes], Any] | None = None,
        decoder: str = "host",
        memory: int | str = 0,
    ):
        if on_error not in ("raise", "black"):
            raise InvalidArgument(f'on_error is "raise" or "black", not {on_error!r}.')
        self._arguments = dict(size=size, augment=augment, labels=labels, seed=seed)
        self._arguments |= dict(channels_last=channels_last, on_error=on_error, decode=decode)
        self._arguments |= dict(decoder=decoder, memory=memory)
        self._source = source
        self._encoded = encoded(source)
        if not len(self._encoded):
            raise InvalidArgument("Pictures of an empty source: there is nothing to feed.")
        self.classes = list(map(os.fspath, self._encoded.classes))
        self.labels = _labels(self._encoded, labels)
        self._failures = _core.PictureFailures()
        recipe = _recipe(size, augment)
        failures = self._failures if on_error == "black" else None
        seed = whole("seed", seed, 0, UINT64)
        libraries = [] if decoder == "host" else nvjpeg_of_wheels()
        options = seed, channels_last, failures, str(memory), _pixels_by(decode), decoder, libraries
        self.field = _core.picture_field(self._encoded, *recipe[:2], *options)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.field.shape)

    @property
    def failures(self) -> dict[int, str]:
        return self._failures.kept

    def name(self, index: int) -> str:
        return os.fspath(self._encoded.name(index))

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, index: int) -> Any:
        return self.field[index]

    def __reduce__(self) -> tuple:
        return functools.partial(Pictures, **self._arguments), (self._source,)

    def __repr__(self) -> str:
        return f"<penstock.Pictures: {len(self)} of {'x'.join(map(str, self.shape[1:]))}>"


def _recipe(size: int | None, augment: Any) -> Recipe:
    if augment is None or isinstance(augment, str):
        side = whole("size", 224 if size is None else size, 1, _LARGEST, what="a number of pixels")
        if augment is None:
            return Recipe((("ResizeShorterSide", ((side * 8 + 6) // 7,)), ("CenterCrop", (side, side))))
        if augment == "imagenet":
            crop = (side, side, 0.08, 1.0, 3 / 4, 4 / 3)
            return Recipe((("RandomResizedCrop", crop), ("RandomHorizontalFlip", (0.5,))))
        raise InvalidArgument(f'augment is None, "imagenet", or transforms of torchvision, not {augment!r}.')
    if size is not None:
        raise InvalidArgument("The transforms of `augment` have sizes: leave `size` out.")
    recipe = recipe_of(augment)
    if recipe.to is not None:
        numbers = "".join(f", {name}={list(getattr(recipe, name))}" for name in ("scale", "shift"))
        raise InvalidArgument(
            "Pictures are uint8, and the Loader converts them on the device: leave the conversion and Normalize out of "
            f'`augment`, and write Loader(..., to="{recipe.to}"{numbers}).'
        )
    return recipe


def _pixels_by(decode: Any) -> Callable[[bytes], tuple[int, int, bytes]] | None:
    """`decode` as `_core.picture_field` takes it."""
    if decode is None:
        return None
    if not callable(decode):
        raise InvalidArgument(f"`decode` is a function that takes bytes and gives pixels, not {decode!r}.")
    numpy = numpy_for("Pictures with `decode`")

    def pixels(data: bytes) -> tuple[int, int, bytes]:
        array = numpy.asarray(decode(data))
        if array.dtype != numpy.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise InvalidArgument(f"it gave {array.dtype} of shape {array.shape}, not uint8 of height x width x 3")
        return array.shape[0], array.shape[1], array.tobytes()

    return pixels


def nvjpeg_of_wheels() -> list[str]:
    """Where wheels have nvJPEG, the newest first: NVIDIA's, and torchvision's for CUDA."""
    found = []
    for package, pattern in (("nvidia", "*/lib/libnvjpeg.so.*"), ("torchvision", "../torchvision.libs/libnvjpeg*.so*")):
        spec = importlib.util.find_spec(package)
        for folder in [] if spec is None else spec.submodule_search_locations or []:
            paths = map(str, pathlib.Path(folder).glob(pattern))
            found += sorted(paths, key=lambda path: path.rpartition(".")[2], reverse=True)
    return found


def _labels(source: _core.EncodedPictures, given: Any) -> Any:
    numpy = numpy_for("Pictures")
    own = numpy.frombuffer(source.labels, numpy.int64)
    if given is None:
        return own if len(own) else None
    if len(own):
        raise InvalidArgument("This source of pictures has labels: leave `labels` out.")
    if len(given) != len(source):
        raise InvalidArgument(f"`labels` has {len(given)} entries for {len(source)} pictures.")
    return numpy.asarray(given) if isinstance(given, list | tuple | range) else given


def encoded(source: Any) -> _core.EncodedPictures:
    """The encoded pictures of a source. Raises InvalidArgument if it is none."""
    if isinstance(source, str | os.PathLike):
        return pictures_in_tars([source]) if _is_tar(source) else _core.EncodedPictures.folder(source)
    if is_a("datasets.arrow_dataset", "Column", source) and is_a("datasets", "Dataset", source.source):
        data = source.source
        rows = None if data._indices is None else data._indices.column(0).to_numpy()
        return _of_column(data.data.column(source.column_name), rows)
    if is_a("pyarrow", "Array", source) or is_a("pyarrow", "ChunkedArray", source):
        return _of_column(source, None)
    if not isinstance(source, Iterable) or isinstance(source, Mapping):
        raise InvalidArgument(f"Pictures are a folder, paths, or encoded images, not {type(source).__name__}.")
    items = list(source)
    if items and all(isinstance(item, bytes) for item in items):
        return _core.EncodedPictures.encoded(items)
    if not all(isinstance(item, str | os.PathLike) for item in items):
        raise InvalidArgument(
            "A list of pictures has paths, or encoded images as bytes. Give classes as `labels`, in a list of their "
            "own."
        )
    if items and all(map(_is_tar, items)):
        return pictures_in_tars(items)
    return _core.EncodedPictures.files([os.fspath(item) for item in items])


def _is_tar(path: Any) -> bool:
    return os.fspath(path).endswith(".tar")


def _of_column(column: Any, rows: Any) -> _core.EncodedPictures:
    """The pictures of an Arrow column of binary values, or of an Image column: structs of bytes and path."""
    numpy = numpy_for("Reading an Arrow column")
    import pyarrow

    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    chunks = [chunk.storage if isinstance(chunk, pyarrow.ExtensionArray) else chunk for chunk in chunks]
    of_paths = False
    if chunks and pyarrow.types.is_struct(chunks[0].type):
        images, paths = ([_part(chunk, name) for chunk in chunks] for name in ("bytes", "path"))
        of_paths = all(chunk.null_count == len(chunk) for chunk in images)
        chunks = paths if of_paths else images
    valid = [chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in chunks]
    fed = numpy.concatenate([numpy.empty(0, bool), *valid])[slice(None) if rows is None else rows]
    if not fed.all():
        raise InvalidArgument(f"{len(fed) - fed.sum()} of {len(fed)} pictures are null: drop their rows.")
    if of_paths:
        paths = [path for chunk in chunks for path in chunk.to_pylist()]
        return encoded(paths if rows is None else [paths[row] for row in rows])
    chunks = [_as_binary(chunk) for chunk in chunks]
    begins, sizes = [numpy.empty(0, numpy.uint64)], [numpy.empty(0, numpy.uint64)]
    for chunk in filter(len, chunks):
        _, ends, values = chunk.buffers()
        offsets = numpy.frombuffer(ends, numpy.uint64)[chunk.offset : chunk.offset + len(chunk) + 1]
        begins.append(offsets[:-1] + numpy.uint64(values.address))
        sizes.append(numpy.diff(offsets))
    begin, size = numpy.concatenate(begins), numpy.concatenate(sizes)
    if rows is not None:
        begin, size = begin[rows], size[rows]
    return _core.EncodedPictures.at_addresses(begin.tolist(), size.tolist(), chunks)


def _part(structs: Any, name: str) -> Any:
    """A field of structs; null where its struct is, unlike `structs.field`."""
    import pyarrow.compute

    if structs.type.get_field_index(name) < 0:
        raise _no_pictures(structs.type)
    return pyarrow.compute.struct_field(structs, name)


def _as_binary(chunk: Any) -> Any:
    """The values with offsets of 64 bits. Raises InvalidArgument if they are no encoded images."""
    import pyarrow

    types, kind = pyarrow.types, chunk.type
    values = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_binary(values) or types.is_large_binary(values) or types.is_binary_view(values)):
        raise _no_pictures(kind)
    return chunk.cast(pyarrow.large_binary())


def _no_pictures(kind: Any) -> InvalidArgument:
    return InvalidArgument(
        f"This column holds {kind}, and a column of pictures holds encoded images, or structs of bytes and path. Pass "
        "paths as a list."
    )
