"""Pictures: encoded images that the loader's threads decode."""

import functools
import io
import json
import os
import pickle
import re
import tarfile
import time

import numpy as np
import pytest

import penstock
from support import run_command, same

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from PIL import Image  # noqa: E402

from picture_files import encode, write_tar  # noqa: E402

COUNT = 21
SIZE = 32
AUGMENT = {"size": SIZE, "augment": "imagenet"}


@pytest.fixture(scope="module")
def encoded():
    return [encode(i, "PNG" if i % 5 == 0 else "JPEG") for i in range(COUNT)]


@pytest.fixture
def folder(tmp_path, encoded):
    """Three classes, with files that are no pictures, in folders and behind links, written in no order."""
    names = [
        f"{'cab'[i % 3]}/{'deep/' * (i % 4 == 1)}{i * 7919 % 100:02}.{('jpg', 'JPEG', 'Png')[i % 3]}"
        for i in range(COUNT)
    ]
    for name, data in zip(names, encoded, strict=True):
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "root" / "a" / "notes.txt").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "one.jpeg").write_bytes(encoded[3])
    (tmp_path / "root" / "bb").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "deep-er").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "root"


def images(batches):
    return np.concatenate([np.asarray(batch[0] if isinstance(batch, tuple | list) else batch) for batch in batches])


def drawn(encoded, indices=None, epoch=0, **options):
    """The images of an epoch, decoded one after the other."""
    pictures = penstock.Pictures(encoded, **{**AUGMENT, **options})
    alone = penstock.Loader(pictures, device="host", tuning=penstock.Tuning(threads=1))
    alone.set_epoch(epoch)
    all_images = images(alone)
    return all_images if indices is None else all_images[indices]


def loader_of(encoded, batch_size=4, device="host", **options):
    data = {"x": penstock.Pictures(encoded, **AUGMENT), "i": np.arange(len(encoded))}
    return penstock.Loader(data, batch_size, device=device, **options)


def expect(batches, encoded, epoch=0):
    count = 0
    for batch in batches:
        for each in batch if isinstance(batch, list) else [batch]:
            indices = np.asarray(each["i"])
            assert same(np.asarray(each["x"]), drawn(encoded, indices, epoch))
        count += len(indices)
    return count


class TestSources:
    def test_a_folder_has_the_order_and_the_labels_of_torchvision(self, folder):
        theirs = pytest.importorskip("torchvision").datasets.ImageFolder(folder)
        ours = penstock.Pictures(f"{folder}/")
        assert ours.classes == theirs.classes == ["a", "b", "bb", "c"]
        assert [ours.name(i) for i in range(len(ours))] == [path for path, _ in theirs.samples]
        assert ours.labels.tolist() == theirs.targets
        [(x, y)] = penstock.Loader(ours, len(ours), device="host")
        assert x.shape == (len(theirs), 3, 224, 224) and x.dtype == torch.uint8
        assert y.tolist() == theirs.targets

    def test_an_image_is_that_of_pillow(self, encoded):
        pictures = penstock.Pictures(encoded, 56)
        for i, data in enumerate(encoded):
            image = Image.open(io.BytesIO(data)).convert("RGB")
            short = min(image.size)
            image = image.resize([int(64 * side / short) for side in image.size], Image.Resampling.BILINEAR)
            left, top = (round((side - 56) / 2) for side in image.size)
            expected = np.asarray(image.crop((left, top, left + 56, top + 56))).transpose(2, 0, 1)
            assert np.abs(np.asarray(pictures[i]).astype(int) - expected).max() <= 2

    @pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_tar_files_of_webdataset(self, encoded, tmp_path, form):
        files = [tmp_path / "train-0.tar", tmp_path / "train-1.tar"]
        long = "a folder/" * (10 if form == tarfile.USTAR_FORMAT else 30)
        for number, file in enumerate(files):
            members = []
            for i in range(number, COUNT, 2):
                of_sample = {"json": b"{}", "JPG": encoded[i], "cls": b"%d\n" % (i % 4)}
                members += [(f"{long}{i:03}.{suffix}", data) for suffix, data in of_sample.items()]
            write_tar(file, members, form)
        pictures = penstock.Pictures(files, SIZE, "imagenet")
        order = [*range(0, COUNT, 2), *range(1, COUNT, 2)]
        assert pictures.labels.tolist() == [i % 4 for i in order]
        assert pictures.name(1) == f"{long}002.jpg in {files[0]}"
        batches = list(penstock.Loader(pictures, 5, device="host"))
        assert same(images(batches), drawn([encoded[i] for i in order]))
        data = files[1].read_bytes()
        files[1].write_bytes(data[:-1024])  # without blocks at its end
        assert len(penstock.Pictures(str(files[1]))) == COUNT // 2
        for cut in (2000, 513):
            files[1].write_bytes(data[:cut])
            with pytest.raises(penstock.Error, match=r"train-1\.tar, byte \d+: .*, found a"):
                penstock.Pictures(files)
        files[1].write_bytes(data[:257] + b"9" + data[258:])
        with pytest.raises(penstock.Error, match=r"train-1\.tar, byte 0: .* that is not a member's head"):
            penstock.Pictures(files)

    @pytest.mark.parametrize(
        ("members", "said"),
        [
            ([("1.jpg", b""), ("1.png", b"")], "sample 1 has several pictures"),
            ([("1.jpg", b""), ("1.cls", b"x")], "the label 1.cls is b'x', not a whole number"),
            ([("1.jpg", b""), ("1.cls", b"1"), ("2.jpg", b"")], "1 of 2 pictures"),
            ([("1.jpg", b""), ("1.cls", b"9223372036854775808")], "not a whole number of 64 bits"),
            ([("1.txt", b"")], "nothing to feed"),
        ],
    )
    def test_tar_files_that_make_no_samples(self, tmp_path, members, said):
        write_tar(tmp_path / "x.tar", members)
        with pytest.raises(penstock.Error, match=said):
            penstock.Pictures(tmp_path / "x.tar")

    def test_paths_and_labels(self, folder):
        by_folder = penstock.Pictures(folder, SIZE)
        paths = [by_folder.name(i) for i in range(len(by_folder))]
        pictures = penstock.Pictures(paths, SIZE, labels=by_folder.labels.tolist())
        ours, theirs = (list(penstock.Loader(each, 4, True, "host")) for each in (pictures, by_folder))
        assert same(images(ours), images(theirs))
        assert [y.tolist() for _, y in ours] == [y.tolist() for _, y in theirs]

    def test_columns_of_arrow(self, encoded):
        pyarrow = pytest.importorskip("pyarrow")
        chunks = pyarrow.chunked_array([[b"no", *encoded[:3]], [], encoded[3:]], pyarrow.binary())
        for column in (chunks.slice(1), chunks.cast(pyarrow.large_binary()).slice(1), pyarrow.array(encoded)):
            assert same(images(loader_of_pictures(column)), drawn(encoded))
        structs = [{"bytes": each, "path": None} for each in encoded]
        kept = pyarrow.StructArray.from_arrays(
            pyarrow.array(structs).flatten(), ["bytes", "path"], mask=pyarrow.array([i == 1 for i in range(COUNT)])
        )
        named = pyarrow.array([{"bytes": None, "path": "a.jpg"}, None])
        for column in (pyarrow.array([*encoded, None]), pyarrow.array([*structs, None]), kept, named):
            with pytest.raises(penstock.InvalidArgument, match=f"1 of {len(column)} pictures are null"):
                penstock.Pictures(column)
        for column in (["a.jpg"], [1], [{"a": 1}], [[1]]):
            with pytest.raises(penstock.InvalidArgument, match=r"This column holds .*encoded images.*as a list"):
                penstock.Pictures(pyarrow.array(column))

    @pytest.mark.parametrize("embedded", [True, False])
    def test_an_image_column_of_hugging_face(self, encoded, folder, embedded):
        datasets = pytest.importorskip("datasets")
        paths = [penstock.Pictures(folder).name(i) for i in range(COUNT)]
        rows = [{"bytes": data, "path": None} for data in encoded] if embedded else paths
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        dataset = datasets.Dataset.from_dict({"image": rows, "label": list(range(COUNT))}, features).shuffle(seed=3)
        order = dataset["label"][:]
        loader = penstock.Loader((penstock.Pictures(dataset["image"], SIZE), dataset["label"]), 4, device="host")
        batches = list(loader)
        assert np.concatenate([np.asarray(y) for _, y in batches]).tolist() == order
        assert same(images(batches), drawn(encoded if embedded else paths, order, augment=None))
        one_less = datasets.Dataset.from_dict(
            {"image": [*rows[:3], None]}, datasets.Features({"image": datasets.Image()})
        )
        assert len(penstock.Pictures(one_less.shuffle(seed=1).filter(lambda row: row["image"])["image"])) == 3
        with pytest.raises(penstock.InvalidArgument, match=r"penstock.Pictures\(x\)"):
            penstock.Loader(dataset)

    def test_the_command_feeds_and_verifies_a_folder(self, folder):
        options = ["--device", "host", "--batch", "4", "--epochs", "2", "--verify", "--json", "-"]
        figures = json.loads(run_command("feed", folder, *options).stdout)
        count = len(penstock.Pictures(folder))
        assert figures["verified"] and figures["samples"] == 2 * count
        batch = next(iter(penstock.Loader(folder, count, device="host")))
        assert same(np.asarray(batch["image"]), images(penstock.Loader(penstock.Pictures(folder), 4, device="host")))

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ([], "empty source"),
            ([1, 2], "has paths, or encoded images"),
            (3, "a folder, paths, or encoded images, not int"),
            ({"image": b""}, "a folder, paths, or encoded images, not dict"),
            ("/nonexistent", "cannot be read as a folder"),
            ("/nonexistent.tar", "nonexistent.tar cannot be opened: No such file"),
        ],
    )
    def test_refuses_what_is_no_source(self, source, said):
        with pytest.raises(penstock.Error, match=said):
            penstock.Pictures(source)

    def test_refuses_a_class_without_pictures(self, tmp_path):
        with pytest.raises(penstock.Error, match="holds no folders"):
            penstock.Pictures(tmp_path)
        (tmp_path / "cats").mkdir()
        with pytest.raises(penstock.Error, match="cats holds no pictures"):
            penstock.Pictures(tmp_path)


def loader_of_pictures(source, **options):
    return penstock.Loader(penstock.Pictures(source, SIZE, "imagenet", **options), 4, device="host")


@pytest.fixture(params=["crops", "colors"])
def each_augment(request, monkeypatch):
    if request.param == "colors":
        transforms = pytest.importorskip("torchvision.transforms")
        colors = [transforms.ColorJitter(0.4, 0.4, 0.4, 0.2), transforms.RandomGrayscale(0.2)]
        listed = [transforms.RandomResizedCrop(SIZE), *colors, transforms.RandomErasing(0.7, value=(7, 8, 9))]
        monkeypatch.setitem(AUGMENT, "size", None)
        monkeypatch.setitem(AUGMENT, "augment", listed)


class TestAugmentation:
    @pytest.mark.usefixtures("each_augment")
    def test_threads_and_batches_change_nothing(self, encoded):
        for options in ({}, {"tuning": penstock.Tuning(threads=1)}, {"batch_size": 20}, {"shuffle": True, "seed": 5}):
            loader = loader_of(encoded, **options)
            for epoch in range(2):
                assert expect(loader, encoded, epoch) == COUNT

    @pytest.mark.usefixtures("each_augment")
    def test_epochs_and_seeds_differ(self, encoded):
        first = drawn(encoded)
        assert not same(first, drawn(encoded, epoch=1))
        assert not same(first, drawn(encoded, seed=1))
        assert same(drawn(encoded, epoch=0, augment=None), drawn(encoded, epoch=1, augment=None))

    @pytest.mark.usefixtures("each_augment")
    def test_goes_on_in_mid_epoch(self, encoded):
        loader = loader_of(encoded, shuffle=True)
        loader.set_epoch(3)
        taken = iter(loader)
        expect([next(taken), next(taken)], encoded, 3)
        state = loader.state_dict()
        again = pickle.loads(pickle.dumps(loader))
        assert expect(taken, encoded, 3) == expect(again, encoded, 3) == COUNT - 8
        resumed = loader_of(encoded, 3, shuffle=True)
        resumed.load_state_dict(state)
        assert expect(resumed, encoded, 3) == COUNT - 8
        assert expect(resumed, encoded, 4) == COUNT

    @pytest.mark.usefixtures("each_augment")
    @pytest.mark.parametrize("device", [["host:1", "host:2"], penstock.relayed("host:1", over=["host:2"])])
    def test_groups_get_the_same(self, encoded, device):
        loader = loader_of(encoded, device=device, shuffle=True)
        for epoch in range(3):
            assert expect(loader, encoded, epoch) == COUNT

    @pytest.mark.usefixtures("each_augment")
    def test_ranks_get_their_shares(self, encoded):
        for rank in range(2):
            loader = loader_of(encoded, shuffle=True, rank=rank, world_size=2)
            loader.set_epoch(2)
            assert expect(loader, encoded, 2) == (COUNT + 1) // 2

    def test_a_sampler_chooses(self, encoded):
        loader = loader_of(encoded, sampler=[4, 4, 20, -1, 0])
        for epoch in range(2):
            assert expect(loader, encoded, epoch) == 5

    def test_channels_last_and_normalised(self, encoded):
        plain = drawn(encoded)
        assert same(drawn(encoded, channels_last=True), plain.transpose(0, 2, 3, 1))
        scale, shift = [0.5, 0.25, 2], [1, 2, 3]
        wide = loader_of(encoded, to="float32", scale={"x": scale}, shift={"x": shift})
        expected = plain * np.float32(scale).reshape(3, 1, 1) + np.float32(shift).reshape(3, 1, 1)
        np.testing.assert_allclose(np.concatenate([np.asarray(b["x"]) for b in wide]), expected, rtol=1e-6)

    def test_stays_on_the_device_only_if_it_does_not_vary(self, encoded):
        loader = penstock.Loader(penstock.Pictures(encoded, SIZE), 4, device="host", residency="all")
        assert same(images(loader), drawn(encoded, augment=None))
        with pytest.raises(penstock.InvalidArgument, match="'image' differ from epoch to epoch"):
            penstock.Loader(penstock.Pictures(encoded, SIZE, "imagenet"), 4, device="host", residency="auto")

    def test_describe_says_so(self, encoded):
        assert loader_of(encoded).describe()[0] == "x: uint8 3x32x32, host gather (its pictures are decoded)"

    def test_refuses_arguments(self, encoded):
        for options, said in (
            ({"on_error": "skip"}, "on_error"),
            ({"augment": "resnet"}, "augment is None"),
            ({"size": 0}, "size is a number of pixels"),
            ({"labels": [1]}, "1 entries for 21 pictures"),
        ):
            with pytest.raises(penstock.InvalidArgument, match=said):
                penstock.Pictures(encoded, **options)


class TestFaults:
    @pytest.fixture
    def paths(self, tmp_path, encoded):
        paths = [tmp_path / f"{i:02}.jpg" for i in range(COUNT)]
        for path, data in zip(paths, encoded, strict=True):
            path.write_bytes(data)
        return paths

    @pytest.mark.parametrize("fault", ["cut", "empty", "text", "huge", "gone", "folder"])
    def test_an_error_names_file_and_sample_and_the_next_epoch_goes_on(self, paths, encoded, fault):
        loader = loader_of(paths)
        bad = paths[9]
        bad.unlink()
        contents = {"cut": encoded[9][:-100], "empty": b"", "text": b"not a picture at all"}
        if fault in contents:
            bad.write_bytes(contents[fault])
        elif fault == "folder":
            bad.mkdir()
        elif fault == "huge":
            bad.touch()
            os.truncate(bad, 2**31)
        batches = iter(loader)
        expect([next(batches), next(batches)], encoded)
        with pytest.raises(penstock.Error, match=f"Sample 9 of field 'image', {bad}: ") as raised:
            next(batches)
        assert isinstance(raised.value, OSError) == (fault in ("gone", "folder"))
        if fault == "folder":
            bad.rmdir()
        bad.write_bytes(encoded[9])
        assert expect(loader, encoded, 1) == COUNT

    @pytest.mark.usefixtures("each_augment")
    @pytest.mark.parametrize("options", [{}, {"size": SIZE, "augment": None}])
    def test_cached_pictures_are_decoded_once(self, paths, encoded, options):
        pictures = penstock.Pictures(paths, **{**AUGMENT, **options, "memory": 1 << 30})
        loader = penstock.Loader(pictures, 4, device="host")
        for epoch in range(3):
            assert same(images(loader), drawn(encoded, epoch=epoch, **options))
            for path in paths:
                path.unlink(missing_ok=True)

    def test_what_finds_no_room_in_the_cache_is_decoded_again(self, paths, encoded):
        pictures = penstock.Pictures(paths, SIZE, "imagenet", memory=5 * 3 * 90 * 70)
        loader = penstock.Loader(pictures, 4, sampler=[0, *range(COUNT), *range(COUNT)], device="host")
        for epoch in range(2):
            assert same(images(loader), drawn(encoded, [0, *range(COUNT), *range(COUNT)], epoch))
        for path in paths:
            path.unlink()
        with pytest.raises(FileNotFoundError):
            list(loader)

    def test_black_pictures_are_counted(self, paths, encoded):
        paths[9].write_bytes(encoded[9][:-100])
        paths[11].unlink()
        pictures = penstock.Pictures(paths, SIZE, "imagenet", on_error="black")
        loader = penstock.Loader(pictures, 4, device="host")
        got = images(loader)
        assert not got[[9, 11]].any()
        good = [i for i in range(COUNT) if i not in (9, 11)]
        assert same(got[good], drawn(encoded, good))
        assert list(pictures.failures) == [9, 11]
        assert all(str(paths[sample]) in why for sample, why in pictures.failures.items())
        list(loader)
        figures = loader.stats()
        assert figures.failed_samples == figures.as_dict()["failed_samples"] == 2
        assert figures.failures == figures.as_dict()["failures"] == list(pictures.failures.values())
        assert f"failed samples             2, which are black. Sample 9 of field 'image', {paths[9]}" in str(figures)

    def test_failures_are_counted_and_some_are_kept(self):
        pictures = penstock.Pictures([b"no"] * 1200, SIZE, on_error="black")
        loader = penstock.Loader(pictures, 100, device="host")
        list(loader)
        assert (loader.stats().failed_samples, len(loader.stats().failures), len(pictures.failures)) == (1200, 20, 1000)

    def test_a_folder_that_changes_is_that_which_was_listed(self, folder):
        pictures = penstock.Pictures(folder, SIZE)
        before = images(penstock.Loader(pictures, 4, device="host"))
        (folder / "a" / "00000.jpg").write_bytes(encode(1))
        (folder / "aa").mkdir()
        assert same(images(penstock.Loader(pictures, 4, device="host")), before)

    def test_a_tar_file_that_is_written_anew_is_an_error(self, tmp_path, encoded):
        file = tmp_path / "x.tar"
        write_tar(file, [(f"{i}.jpg", each) for i, each in enumerate(encoded)])
        pictures = penstock.Pictures(file, SIZE)
        loader = penstock.Loader(pictures, 4, device="host")
        assert same(images(loader), drawn(encoded, augment=None))
        write_tar(tmp_path / "y.tar", [(f"{i}.jpg", each) for i, each in enumerate(reversed(encoded))])
        os.replace(tmp_path / "y.tar", file)
        with pytest.raises(penstock.Error, match=r"Sample \d+ of.*x\.tar was written after its pictures were listed"):
            list(loader)

    def test_names_that_are_no_text(self, tmp_path, encoded):
        name = b"\xff".decode("utf-8", "surrogateescape")
        path = tmp_path / name / f"{name}.jpg"
        path.parent.mkdir()
        path.write_bytes(encoded[1])
        pictures = penstock.Pictures(tmp_path, SIZE)
        assert pictures.classes == [name] and pictures.name(0) == str(path)
        path.write_bytes(b"")
        with pytest.raises(penstock.Error, match=r"\\xff\.jpg"):
            pictures[0]
        lenient = penstock.Pictures(tmp_path, SIZE, on_error="black")
        assert not lenient[0].any() and "\\xff.jpg" in lenient.failures[0]

    def test_a_file_without_permission(self, paths):
        if os.geteuid() == 0:
            pytest.skip("root may read all files")
        paths[2].chmod(0)
        with pytest.raises(PermissionError, match=r"Sample 2 .*02\.jpg"):
            list(loader_of(paths))


def by_pillow(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


class TestDecodeFunction:
    @pytest.fixture
    def pixels(self):
        return np.random.default_rng(1).integers(0, 256, (3, 50, 60, 3), dtype=np.uint8)

    @staticmethod
    def saved(pixels, form):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, form)
        return out.getvalue()

    @pytest.mark.parametrize("memory", [0, 1 << 20])
    def test_decodes_the_formats_that_are_not_known(self, pixels, memory):
        pngs, *others = ([self.saved(each, form) for each in pixels] for form in ("PNG", "BMP", "TIFF"))
        mixed, calls = [pngs[0], others[0][1], others[1][2]], []

        def decode(data):
            calls.append(data)
            return by_pillow(data)

        pictures = penstock.Pictures(mixed, SIZE, "imagenet", decode=decode, memory=memory)
        loader = penstock.Loader(pictures, 2, device="host")
        for epoch in range(3):
            assert same(images(loader), drawn(pngs, epoch=epoch))
        assert set(calls) == set(mixed[1:]) and (len(calls) == 2) == (memory > 0)

    def test_an_error_names_the_line_that_decodes(self, pixels):
        bmp, png = (self.saved(pixels[0], form) for form in ("BMP", "PNG"))
        with pytest.raises(penstock.Error, match="It is a BMP") as raised:
            penstock.Pictures([bmp], SIZE)[0]
        [line] = re.findall(r"decode=(lambda .*)\)\.$", str(raised.value))
        decode = eval(line, {"PIL": __import__("PIL.Image"), "io": io})
        assert same(np.asarray(penstock.Pictures([bmp], SIZE, decode=decode)[0]), drawn([png], augment=None)[0])

    def test_members_of_tar_files(self, pixels, tmp_path):
        members = [("1.tiff", self.saved(pixels[0], "TIFF")), ("2.png", png := self.saved(pixels[1], "PNG"))]
        write_tar(tmp_path / "x.tar", [*members, ("2.tiff", b"its mask")])
        pictures = penstock.Pictures(tmp_path / "x.tar", SIZE, "imagenet", decode=by_pillow)
        got = images(penstock.Loader(pictures, 1, device="host"))
        assert same(got, drawn([self.saved(pixels[0], "PNG"), png]))

    def test_its_errors_are_those_of_the_picture(self, encoded):
        def fails(data):
            raise ValueError(f"no picture in {data}")

        cases = (
            (fails, "`decode` raised ValueError: no picture in b'hello'"),
            (lambda data: np.zeros((2, 2), np.uint8), r"it gave uint8 of shape \(2, 2\)"),
            (lambda data: np.zeros((2, 2, 3)), r"it gave float64 of shape \(2, 2, 3\)"),
            (lambda data: np.zeros((0, 2, 3), np.uint8), "A picture has a height of 1 or more"),
        )
        for decode, said in cases:
            pictures = penstock.Pictures([encoded[0], b"hello"], SIZE, decode=decode)
            with pytest.raises(penstock.Error, match=f"Sample 1 of field 'image', picture 1: .*{said}"):
                list(penstock.Loader(pictures, 1, device="host"))
            black = penstock.Pictures([encoded[0], b"hello"], SIZE, decode=decode, on_error="black")
            assert [x.any() for x in images(penstock.Loader(black, 1, device="host"))] == [True, False]
        with pytest.raises(penstock.InvalidArgument, match="`decode` is a function"):
            penstock.Pictures(encoded, SIZE, decode="PIL")

    def test_ctrl_c_is_none_of_them(self):
        def interrupted(data):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            penstock.Pictures([b"hello"], SIZE, decode=interrupted, on_error="black")[0]

    @pytest.mark.parametrize("device", ["host", ["host:1", "host:2"]])
    def test_a_loop_that_asks_much_goes_on(self, device):
        def slow(data):
            time.sleep(0.001)
            return np.full((SIZE, SIZE, 3), int(data), np.uint8)

        pictures = penstock.Pictures([b"%d" % i for i in range(100)], SIZE, decode=slow)
        loader, count = penstock.Loader(pictures, 5, device=device), 0
        for batch in loader:
            loader.stats(), loader.state_dict(), loader.describe()
            for x in batch if isinstance(batch, list) else [batch]:
                assert np.asarray(x)[:, 0, 0, 0].tolist() == list(range(count, count + 5))
            count += 5
        assert count == 100


class TestColors:
    @pytest.fixture
    def transforms(self):
        return pytest.importorskip("torchvision.transforms")

    @pytest.fixture
    def picture(self):
        """All kinds of colors, and a number of pixels that vectors do not divide."""
        pixels = np.random.default_rng(2).integers(0, 256, (63, 67, 3), dtype=np.uint8)
        pixels[:30] = pixels[:30] // 128 * 255
        pixels[40:50] = pixels[40:50, :, :1]
        return pixels

    @staticmethod
    def changed(picture, *operations, count=1, **options):
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "PNG")
        center = pytest.importorskip("torchvision.transforms").CenterCrop(picture.shape[:2])
        pictures = penstock.Pictures([out.getvalue()] * count, augment=[center, *operations], **options)
        got = images(penstock.Loader(pictures, count, device="host"))
        return got if options.get("channels_last") else got.transpose(0, 2, 3, 1)

    @pytest.mark.parametrize("channels_last", [False, True])
    @pytest.mark.parametrize(
        ("change", "amounts"),
        [
            ("brightness", (0, 0.3, 1.7)),
            ("contrast", (0, 0.4, 1.9)),
            ("saturation", (0, 0.6, 2.5)),
            ("hue", (-0.5, -0.21, 0.05, 0.5)),
        ],
    )
    def test_a_jitter_is_that_of_torchvision(self, transforms, picture, change, amounts, channels_last):
        functional = pytest.importorskip("torchvision.transforms.v2.functional")
        for amount in amounts:
            jitter = transforms.ColorJitter(**{change: (amount, amount)})
            [got] = self.changed(picture, jitter, channels_last=channels_last)
            tensor = torch.from_numpy(picture).permute(2, 0, 1)
            expected = getattr(functional, f"adjust_{change}")(tensor, amount).permute(1, 2, 0).numpy()
            assert np.abs(got.astype(int) - expected).max() <= 1
            assert (got == expected).mean() > 0.99

    def test_grey_is_that_of_torchvision(self, transforms, picture):
        [got] = self.changed(picture, transforms.RandomGrayscale(1))
        expected = transforms.functional.rgb_to_grayscale(torch.from_numpy(picture).permute(2, 0, 1), 3)
        assert same(got, expected.permute(1, 2, 0).numpy())
        some = self.changed(picture, transforms.RandomGrayscale(0.3), count=99)
        assert 15 < sum(same(image, got) for image in some) < 45

    def test_a_jitter_comes_in_any_order(self, transforms, picture):
        brighter = functools.partial(transforms.functional.adjust_brightness, brightness_factor=2)
        flatter = functools.partial(transforms.functional.adjust_contrast, contrast_factor=0.5)
        tensor = torch.from_numpy(picture).permute(2, 0, 1)
        orders = [each.permute(1, 2, 0).numpy() for each in (brighter(flatter(tensor)), flatter(brighter(tensor)))]
        jitter = transforms.ColorJitter(brightness=(2, 2), contrast=(0.5, 0.5))
        got = self.changed(picture, jitter, count=40)
        found = [[np.abs(image.astype(int) - each).max() <= 2 for each in orders] for image in got]
        assert all(sum(each) == 1 for each in found) and 8 < sum(first for first, _ in found) < 32

    @pytest.mark.parametrize("channels_last", [False, True])
    def test_an_erased_area_has_one_color(self, transforms, picture, channels_last):
        flip, color = transforms.RandomVerticalFlip(1), (3, 255, 128)
        erase = transforms.RandomErasing(0.6, scale=(0.1, 0.4), ratio=(0.5, 2), value=color)
        picture = np.maximum(picture, 4)
        count = 0
        for image in self.changed(picture, erase, flip, count=50, channels_last=channels_last):
            erased = (image == color).all(axis=2)
            rows, columns = np.nonzero(erased.any(axis=1))[0], np.nonzero(erased.any(axis=0))[0]
            assert same(image[~erased], picture[::-1][~erased])
            assert erased.sum() == len(rows) * len(columns)
            assert not len(rows) or (0.09 < erased.mean() < 0.42 and 0.45 < len(rows) / len(columns) < 2.2)
            count += len(rows) > 0
        assert 20 < count < 40


class TestTransforms:
    @pytest.fixture
    def transforms(self):
        return pytest.importorskip("torchvision.transforms")

    def test_a_list_of_transforms(self, transforms, encoded):
        listed = [transforms.RandomResizedCrop(SIZE), transforms.Compose([transforms.RandomHorizontalFlip()])]
        assert same(drawn(encoded, size=None, augment=listed), drawn(encoded))
        listed = transforms.Compose([transforms.Resize(37), transforms.CenterCrop(SIZE)])
        assert same(drawn(encoded, size=None, augment=listed), drawn(encoded, augment=None))
        cubic = transforms.RandomResizedCrop(SIZE, interpolation=transforms.InterpolationMode.BICUBIC)
        assert not same(drawn(encoded, size=None, augment=[cubic, transforms.RandomHorizontalFlip()]), drawn(encoded))

    def test_crops_with_padding_and_flips_for_sure(self, transforms):
        square = [np.arange(3 * 8 * 8, dtype=np.uint8).reshape(8, 8, 3)]
        out = io.BytesIO()
        Image.fromarray(square[0]).save(out, "PNG")
        flips = [transforms.RandomHorizontalFlip(1), transforms.RandomVerticalFlip(1), transforms.CenterCrop((6, 4))]
        [x] = penstock.Loader(penstock.Pictures([out.getvalue()], augment=flips, channels_last=True), 1, device="host")
        assert same(np.asarray(x)[0], square[0][::-1, ::-1][1:7, 2:6])
        padded = penstock.Pictures([out.getvalue()], augment=transforms.RandomCrop(8, padding=2), channels_last=True)
        [x] = penstock.Loader(padded, 1, device="host")
        around = np.pad(square[0], ((2, 2), (2, 2), (0, 0)))
        crops = [around[top : top + 8, left : left + 8] for top in range(5) for left in range(5)]
        assert any(same(np.asarray(x)[0], crop) for crop in crops)

    def test_refuses_what_it_does_not_do(self, transforms, encoded):
        nearest = transforms.InterpolationMode.NEAREST
        for augment, said in (
            (transforms.GaussianBlur(3), "GaussianBlur is not one of RandomResizedCrop, "),
            ([transforms.ColorJitter(0.1), transforms.CenterCrop(8)], "put what crops or resizes before"),
            ([transforms.ToTensor(), transforms.ColorJitter(0.1)], "ColorJitter comes after the conversion"),
            (transforms.RandomErasing(value="random"), "RandomErasing has random values"),
            (transforms.RandomErasing(value=256), "RandomErasing has the value 256, which is not that of a pixel"),
            (transforms.RandomErasing(value=(1, 2)), r"has the value \(1, 2\), which"),
            (lambda image: image, "function is not one of"),
            (transforms.RandomResizedCrop(8, interpolation=nearest), "by nearest interpolation"),
            (transforms.Resize(8, max_size=9), "Resize has a max_size"),
            (transforms.RandomCrop(8, padding=(1, 2)), "RandomCrop pads otherwise"),
            (transforms.RandomCrop(8, pad_if_needed=True), "RandomCrop pads otherwise"),
            ([transforms.Normalize(0, 1), transforms.ToTensor()], "Normalize comes twice, or before"),
            ([transforms.ToTensor(), transforms.Normalize(0, 1)], "the parameters of Normalize are not known"),
            ([transforms.ToTensor(), transforms.Resize(8)], "Resize comes after the conversion to float32"),
            (
                [transforms.CenterCrop(8), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)],
                r'to="float32", scale=\[0.0156\d*, .*\], shift=\[-2.0, -2.0, -2.0\]',
            ),
            ([transforms.RandomHorizontalFlip()], "size"),
        ):
            with pytest.raises(penstock.InvalidArgument, match=said):
                penstock.Pictures(encoded, augment=augment)
        with pytest.raises(penstock.InvalidArgument, match="leave `size` out"):
            penstock.Pictures(encoded, 8, transforms.CenterCrop(8))
