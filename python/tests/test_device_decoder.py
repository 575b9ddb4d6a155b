"""Pictures that the device decodes, by nvJPEG or by its stand-in over the fake driver."""

import ctypes
import io
import pickle
import re

import numpy as np
import pytest

import penstock
from fake_driver import driver, over_the_fake_driver
from support import gpu

pytest.importorskip("PIL")

from PIL import Image

from picture_files import encode

COUNT = 21
SIZE = 32
EXECUTION_FAILED = 6


def nvjpeg():
    library = ctypes.CDLL("libnvjpeg.so.13")
    library.fake_nvjpeg_reset()
    return library


def as_jpeg(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def mixed():
    """Baseline JPEGs with some of all kinds that the host decodes."""
    picture = Image.open(io.BytesIO(encode(5)))
    others = [picture.convert("L"), picture.convert("CMYK")]
    made = [encode(i) for i in range(COUNT - 6)] + [encode(1, "PNG"), *map(as_jpeg, others)]
    return [*made, as_jpeg(picture, progressive=True), as_jpeg(picture, subsampling=0), as_jpeg(picture, subsampling=1)]


def loader(encoded, device="cuda:0", batch=4, to=None, order=None, tuning=None, pictures=None, **options):
    source = {"size": SIZE, "augment": "imagenet", "decoder": "host" if device == "host" else "device", **options}
    fields = {"x": pictures or penstock.Pictures(encoded, **source), "i": np.arange(len(encoded))}
    order = {"shuffle": True, "seed": 3} if order is None else order
    return penstock.Loader(fields, batch, device=device, to={} if to is None else {"x": to}, tuning=tuning, **order)


def epoch(batches):
    """Images and numbers of the samples."""
    arrays = [[np.asarray(penstock.to_host(batch[name])) for name in "xi"] for batch in batches]
    return [np.concatenate(each) for each in zip(*arrays, strict=True)]


def check_as_on_the_host(most, **options):
    (images, numbers), (expected, in_order) = (epoch(loader(mixed(), at, **options)) for at in ("cuda:0", "host"))
    assert numbers.tolist() == in_order.tolist()
    difference = np.abs(images.astype(float) - expected.astype(float))
    by_host = np.isin(numbers, [COUNT - 6, COUNT - 4, COUNT - 3])
    assert not difference[by_host].any(), "what the host decodes has its bytes"
    assert difference.max() <= most
    return difference


FORMS = [
    {},
    {"augment": None},
    {"to": "float32"},
    {"channels_last": True, "size": 40},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hardware", [True, False])
@over_the_fake_driver
def test_images_are_those_of_the_host(form, hardware):
    nvjpeg().fake_nvjpeg_set_hardware(int(hardware))
    difference = check_as_on_the_host(1, **form)
    assert (difference > 0).mean() < 0.02
    said = loader(mixed(), **form).describe()[0]
    assert f"decoded on the device by nvJPEG 13.0, by its {'hardware engines' if hardware else 'kernels'}" in said


@gpu
@pytest.mark.parametrize("form", FORMS)
def test_images_are_near_those_of_the_host_on_a_gpu(form):
    try:
        difference = check_as_on_the_host(64, **form)  # chroma is not upsampled alike
    except penstock.Unsupported as missing:
        pytest.skip(str(missing))
    assert difference.mean() < 2
    again = [epoch(loader(mixed(), batch=batch, **form)) for batch in (3, COUNT)]
    assert np.array_equal(again[0][0], again[1][0])


def by_number(batches):
    images, numbers = epoch(batches)
    return dict(zip(numbers.tolist(), images, strict=True))


def check_same(some, all_of_them):
    assert some and all(np.array_equal(image, all_of_them[number]) for number, image in some.items())
    return len(some)


def bicubic(encoded, operations, decoder, channels_last=False):
    pictures = penstock.Pictures(encoded)
    options = [5, channels_last, None, "0", None, decoder]
    pictures.field = penstock._core.picture_field(pictures._encoded, operations, True, *options)
    return pictures


@pytest.mark.parametrize("channels_last", [True, False])
@over_the_fake_driver
def test_windows_beside_the_picture_and_bicubic_resizing(channels_last):
    nvjpeg()
    encoded = [encode(i) for i in range(COUNT)]
    operations = [("Resize", [51.0, 77.0]), ("RandomCrop", [40.0, 90.0, 13.0]), ("RandomVerticalFlip", [0.5])]
    images = []
    for at, decoder in (("cuda:0", "device"), ("host", "host")):
        pictures = bicubic(encoded, operations, decoder, channels_last)
        images.append(epoch(loader(encoded, at, pictures=pictures))[0].astype(int))
    assert np.abs(images[0] - images[1]).max() <= 1 and (images[0] == 0).mean() > 0.1


@pytest.mark.parametrize("faster", ["device", "host"])
@over_the_fake_driver
def test_auto_takes_the_faster_and_says_so(faster):
    library = nvjpeg()
    large = as_jpeg(Image.effect_noise((1500, 1500), 90).convert("RGB"))
    encoded = [large if faster == "device" else encode(1)] * 8
    library.fake_nvjpeg_set_instant(int(faster == "device"))
    driver.delay_work("cuLaunchHostFunc", 0 if faster == "device" else 300_000_000)
    pictures = bicubic(encoded, [("CenterCrop", [4.0, 4.0])], "auto")
    fed = loader(encoded, batch=8, pictures=pictures)
    said = r"x: uint8 3x4x4, decoded on the device by .*: in" if faster == "device" else r".*pictures are decoded; in"
    assert re.match(said + r" a trial \d+ a second on the device, \d+ on the host", fed.describe()[0]), fed.describe()
    part = loader(encoded, pictures=pictures, order={"rank": 0, "world_size": 2})
    assert "by its hardware engines" in part.describe()[0] and "trial" not in part.describe()[0]
    for options, given in (({"memory": 1}, {}), ({}, {"residency": "auto"})):
        source = penstock.Pictures(encoded, decoder="auto", **options)
        assert "on the device by" not in penstock.Loader(source, device="cuda:0", **given).describe()[0]


@over_the_fake_driver
def test_batches_resumes_and_ranks_change_no_image():
    nvjpeg()
    encoded = mixed()
    expected = by_number(loader(encoded))
    for options in ({"batch": 1}, {"batch": 9}, {"batch": COUNT, "tuning": penstock.Tuning(threads=1)}):
        assert check_same(by_number(loader(encoded, **options)), expected) == COUNT
    fed = loader(encoded)
    taken = iter(fed)
    first = by_number([next(taken), next(taken)])
    resumed = loader(encoded, batch=3)
    resumed.load_state_dict(fed.state_dict())
    rest = by_number(resumed)
    assert check_same(first, expected) + check_same(rest, expected) == COUNT and not first.keys() & rest.keys()
    assert not np.array_equal(by_number(resumed)[0], expected[0]), "the next epoch has other crops"
    shares = [by_number(loader(encoded, order={"seed": 3, "rank": rank, "world_size": 2})) for rank in range(2)]
    assert sum(check_same(share, expected) for share in shares) == COUNT + 1
    assert "decoded on the device" in pickle.loads(pickle.dumps(fed)).describe()[0]


@pytest.mark.parametrize("together", [["cuda:0", "cuda:1"], penstock.relayed("cuda:0", over=["cuda:1"])])
@over_the_fake_driver
def test_groups_get_the_same(together):
    nvjpeg()
    expected = by_number(loader(mixed()))
    count = 0
    for batch in loader(mixed(), together):
        for each in batch if isinstance(batch, list) else [batch]:
            count += check_same(by_number([each]), expected)
    assert count == (2 if isinstance(together, list) else 1) * COUNT


@over_the_fake_driver
def test_late_work_changes_nothing():
    """The library reads the files, and the kernel its pixels, when the stream comes to them."""
    nvjpeg()
    expected = by_number(loader(mixed()))
    driver.delay_copies(3_000_000)
    driver.delay_work("cuLaunchHostFunc", 5_000_000)
    fed = loader(mixed(), to="float32")
    for _ in range(2):
        fed.set_epoch(0)
        check_same(by_number(fed), expected)


@over_the_fake_driver
def test_memory_does_not_grow_after_the_first_epochs():
    library = nvjpeg()
    fed = loader([encode(i) for i in range(COUNT)], batch=9)
    held = []
    for _ in range(6):
        for _ in fed:
            pass
        held.append((driver.device_bytes(), driver.locked_bytes()))
    assert held[1] == held[-1], held
    fed.close()
    del fed
    assert library.fake_nvjpeg_live() == 0


@pytest.mark.parametrize("on_error", ["raise", "black"])
@over_the_fake_driver
def test_a_file_that_is_cut_is_named(on_error):
    nvjpeg()
    encoded = [encode(i) for i in range(COUNT)]
    expected = by_number(loader(encoded))
    encoded[7] = encoded[7][:-100]
    fed = loader(encoded, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(penstock.Error, match=r"Sample 7 of field 'image', picture 7: .*truncated"):
            list(fed)
        return
    images = by_number(fed)
    assert not images.pop(7).any() and fed.stats().failed_samples == 1
    assert check_same(images, expected) == COUNT - 1


@over_the_fake_driver
def test_what_the_library_refuses_is_decoded_by_the_host():
    library = nvjpeg()
    encoded = [encode(i) for i in range(COUNT)]
    by_device, by_host = (by_number(loader(encoded, at)) for at in ("cuda:0", "host"))
    for nth in (1, 3):
        library.fake_nvjpeg_reset()
        library.fake_nvjpeg_fail(b"nvjpegDecodeBatched", ctypes.c_long(nth), EXECUTION_FAILED)
        assert check_same(by_number(loader(encoded)), by_device) == COUNT, "one by one, it takes them"
    library.fake_nvjpeg_reset()
    library.fake_nvjpeg_refuse(60 + 4 * 3)
    images = by_number(loader(encoded))
    assert np.array_equal(images[4], by_host[4])
    check_same({number: image for number, image in images.items() if number != 4}, by_device)


@over_the_fake_driver
def test_a_library_that_fails_is_an_error():
    library = nvjpeg()
    encoded = [encode(i) for i in range(COUNT)]
    for call in ("nvjpegJpegStateCreate", "nvjpegDecodeBatchedInitialize"):
        for nth in (1, 2):
            library.fake_nvjpeg_reset()
            library.fake_nvjpeg_fail(call.encode(), ctypes.c_long(nth), EXECUTION_FAILED)
            with pytest.raises(penstock.DeviceError, match=f"{call}.*NVJPEG_STATUS_EXECUTION_FAILED"):
                list(loader(encoded))
    assert library.fake_nvjpeg_live() == 0
    library.fake_nvjpeg_set_hardware(0)
    library.fake_nvjpeg_fail(b"nvjpegCreateExV2", ctypes.c_long(2), EXECUTION_FAILED)
    with pytest.raises(penstock.Unsupported, match=r"pip install nvidia-nvjpeg"):
        loader(encoded)


def test_a_device_without_nvjpeg_says_so():
    encoded = [encode(i) for i in range(4)]
    with pytest.raises(penstock.Unsupported, match="host decodes no pictures"):
        penstock.Loader(penstock.Pictures(encoded, decoder="device"), device="host")
    for options, said in (
        ({"decoder": "gpu"}, '"host", "device" or "auto", not "gpu"'),
        ({"decoder": "device", "memory": 1}, "A cache of decoded pictures is the host's"),
    ):
        with pytest.raises(penstock.InvalidArgument, match=said):
            penstock.Pictures(encoded, **options)
    said = penstock.Loader(penstock.Pictures(encoded, decoder="auto"), device="host").describe()[0]
    assert "its pictures are decoded; host decodes no pictures, since it is no GPU" in said


@over_the_fake_driver
def test_decoded_samples_do_not_stay():
    nvjpeg()
    pictures = penstock.Pictures(mixed(), SIZE, decoder="device")
    with pytest.raises(penstock.InvalidArgument, match="decoded on the device each time: leave out the residency"):
        penstock.Loader(pictures, device="cuda:0", residency="auto")
