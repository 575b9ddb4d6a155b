"""Encoded pictures, and files of them."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

import penstock


def encode(seed, form="JPEG"):
    """A picture of a size of its own."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(coarse).resize((60 + seed * 3, 50 + seed * 2), Image.Resampling.BICUBIC).save(out, form)
    return out.getvalue()


def write(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(seed))


def write_tar(path, members, form=tarfile.DEFAULT_FORMAT):
    """`members`: pairs of a name and bytes."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def skip_without_decoders():
    """A build goes on where libjpeg-turbo or libspng is not installed."""
    for form in ("JPEG", "PNG"):
        try:
            penstock.Pictures([encode(0, form)])[0]
        except penstock.Error as error:
            if "was built without" not in str(error):
                raise
            pytest.skip(str(error), allow_module_level=True)


skip_without_decoders()
