"""feed(..., pictures=True): a DataLoader of an ImageFolder, whose pictures penstock decodes."""

import copy
import io
import os

import numpy as np
import pytest

import penstock
from support import same

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader, RandomSampler, Subset  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

import picture_files  # noqa: E402, F401  (skips where pictures are not decoded)

COUNT = 23
SIZE = 24
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
)
PLAIN = transforms.Compose(
    [transforms.Resize(28), transforms.CenterCrop(SIZE), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for i in range(COUNT):
        coarse = np.random.default_rng(i).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        path = root / "abc"[i % 3] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(coarse).resize((40 + i, 60 - i)).save(path)
    return root


def loader_of(root, transform=TRAIN, batch_size=4, **options):
    return DataLoader(ImageFolder(root, transform), batch_size, **options)


def fed(loader, **options):
    return penstock.feed(loader, "host", pictures=True, **options)


def kept(batches):
    return [[part.clone() for part in batch] for batch in batches]


def equal(ours, theirs):
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(map(torch.equal, a, b)) for a, b in zip(ours, theirs, strict=True)
    )


class TestTheLoadersBatches:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("version", [transforms, v2])
    def test_pixels_order_and_targets(self, root, workers, version):
        steps = [version.Resize(28), version.CenterCrop(SIZE), *tensors_of(version), version.Normalize(MEAN, STD)]
        loader = loader_of(root, version.Compose(steps), num_workers=workers, shuffle=True)
        torch.manual_seed(5)
        theirs = [kept(loader) for _ in range(2)]
        state = torch.get_rng_state()
        torch.manual_seed(5)
        feed = fed(loader)
        for epoch in theirs:
            for (x, y), (wanted, targets) in zip(kept(feed), epoch, strict=True):
                assert torch.equal(y, targets) and x.dtype == wanted.dtype
                assert (x - wanted).abs().max() <= 1.01 / 255 / min(STD)
        assert torch.equal(torch.get_rng_state(), state)
        assert feed.describe()[0] == "the dataset is pictures, which are decoded without worker processes"

    def test_each_epoch_has_random_numbers_of_its_own(self, root):
        loader = loader_of(root)
        torch.manual_seed(1)
        feed = fed(loader)
        first, second = kept(feed), kept(feed)
        assert not equal(first, second)
        assert equal([[y] for _, y in first], [[y] for _, y in second])
        torch.manual_seed(1)
        assert equal(kept(fed(loader)), first)
        persistent = fed(loader_of(root, num_workers=1, persistent_workers=True))
        assert not equal(kept(persistent), kept(persistent))

    def test_a_subset_has_the_same_pictures(self, root):
        dataset = ImageFolder(root, TRAIN)
        torch.manual_seed(2)
        all_batches = kept(fed(DataLoader(dataset, COUNT)))
        torch.manual_seed(2)
        picked = [20, 3, -1, 3]
        [(x, y)] = kept(fed(DataLoader(Subset(Subset(dataset, range(COUNT)), picked), 4)))
        assert torch.equal(x, all_batches[0][0][picked]) and torch.equal(y, all_batches[0][1][picked])
        with pytest.raises(penstock.InvalidArgument, match="picks samples that the dataset does not have"):
            fed(DataLoader(Subset(dataset, [COUNT]), 4))

    def test_a_changed_transform_is_seen_by_the_next_epoch(self, root):
        loader = loader_of(root)
        feed = fed(loader)
        assert next(iter(feed))[0].shape == (4, 3, SIZE, SIZE)
        loader.dataset.transform = transforms.Compose([transforms.CenterCrop(8), transforms.PILToTensor()])
        assert next(iter(feed))[0].shape == (4, 3, 8, 8)
        loader.dataset.transform = None
        with pytest.raises(penstock.InvalidArgument, match="images of Pillow"):
            iter(feed)

    def test_samples_that_changed_in_place_are_seen_by_the_next_epoch(self, root):
        loader = loader_of(root, PLAIN)
        feed = fed(loader)
        before = kept(feed)
        loader.dataset.samples.reverse()
        (x, y), (changed_x, changed_y) = (
            map(torch.cat, zip(*batches, strict=True)) for batches in (before, kept(feed))
        )
        assert torch.equal(changed_x, x.flip(0)) and torch.equal(changed_y, y.flip(0))

    @pytest.mark.parametrize("kind", ["penstock", "random", "random, seeded", "in order"])
    def test_an_epoch_is_resumed_with_its_pictures(self, root, kind):
        def make():
            dataset = ImageFolder(root, TRAIN)
            generator = torch.Generator().manual_seed(3) if "seeded" in kind else None
            sampler = RandomSampler(dataset, generator=generator) if "random" in kind else None
            if kind == "penstock":
                sampler = penstock.Sampler(dataset, shuffle=True, seed=7)
            return fed(DataLoader(dataset, 4, sampler=sampler), resumable=True)

        feed = make()
        kept(feed)
        batches = iter(feed)
        kept([next(batches), next(batches)])
        state = copy.deepcopy(feed.state_dict())
        rest = kept(batches)
        again = make()
        torch.manual_seed(99)
        again.load_state_dict(state)
        assert equal(kept(again), rest)

    @pytest.mark.parametrize("version", [transforms, v2])
    def test_erases_what_is_normalised(self, root, version):
        value = (0.5, 0.0, -1.0)
        jitter = version.ColorJitter(0.4, 0.4, 0.4, 0.1)
        plain = [version.Resize(28), version.CenterCrop(SIZE), jitter, version.RandomGrayscale(), *tensors_of(version)]
        erase = version.RandomErasing(1, value=value)
        batches = []
        for last in ([], [erase]):
            torch.manual_seed(8)
            steps = [*plain, version.Normalize(MEAN, STD), *last]
            batches.append(torch.cat([x for x, _ in kept(fed(loader_of(root, version.Compose(steps))))]))
        whole, erased = batches
        changed = (whole != erased).any(dim=1)
        assert changed.flatten(1).any(dim=1).all()
        for c in range(3):
            assert (erased[:, c][changed] - value[c]).abs().max() <= 0.51 / 255 / STD[c]

    def test_goes_to_a_group(self, root):
        torch.manual_seed(4)
        alone = kept(fed(loader_of(root)))
        torch.manual_seed(4)
        feed = penstock.feed(loader_of(root), ["host:1", "host:2"], pictures=True)
        for batch, wanted in zip(feed, alone, strict=True):
            assert equal(batch, [wanted, wanted])


class TestErrors:
    def test_names_the_part_that_is_not_done(self, root):
        blur = transforms.Compose([transforms.GaussianBlur(3), TRAIN])
        image = [transforms.CenterCrop(8), v2.RandomErasing()]
        dataset = ImageFolder(root, TRAIN)
        for loader, said in (
            (loader_of(root, blur), "GaussianBlur is not one of RandomResizedCrop, "),
            (loader_of(root, transforms.Compose([*image, v2.PILToTensor()])), "RandomErasing comes before the"),
            (loader_of(root, None), "gives images of Pillow, not tensors"),
            (loader_of(root, transforms.PILToTensor()), "size"),
            (DataLoader(ImageFolder(root, TRAIN, target_transform=str), 4), "has a target_transform"),
            (DataLoader(ImageFolder(root, TRAIN, loader=Image.open), 4), "has a loader of its own"),
            (DataLoader(list(range(4))), "its dataset is a list, and not an ImageFolder"),
            (
                DataLoader(type("Mine", (ImageFolder,), {})(root, TRAIN)),
                "its dataset is a Mine, and not an ImageFolder",
            ),
            (DataLoader(dataset, 4, collate_fn=list), "a collate_fn of its own"),
            ([torch.zeros(3)], "it is a list, and not a DataLoader"),
        ):
            with pytest.raises(penstock.InvalidArgument, match=f"cannot decode the pictures of its loader: .*{said}"):
                fed(loader)

    def test_describe_says_what_would_be_decoded(self, root):
        [line] = penstock.feed(loader_of(root), "host").describe()[:1]
        assert line.endswith("; with pictures=True they are decoded by penstock, without worker processes")
        blur = transforms.Compose([transforms.GaussianBlur(3), TRAIN])
        [line] = penstock.feed(loader_of(root, blur), "host").describe()[:1]
        assert "with pictures=True they would be decoded by penstock, but GaussianBlur is not one of" in line

    def test_files_of_another_kind(self, root, tmp_path):
        (tmp_path / "a").mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / "a" / "1.bmp")
        with pytest.raises(penstock.InvalidArgument, match=r"files of the kind \.bmp"):
            fed(loader_of(tmp_path))

    def test_a_build_that_decodes_less_refuses_the_folder(self, root, monkeypatch):
        monkeypatch.setattr("penstock._core.decoded_suffixes", lambda: [".png"])
        with pytest.raises(penstock.InvalidArgument, match=r"files of the kind \.jpe?g, which this build"):
            fed(loader_of(root))

    def test_a_broken_file_and_the_epoch_after_it(self, tmp_path):
        (tmp_path / "a").mkdir()
        out = io.BytesIO()
        Image.new("RGB", (60, 60), (9, 8, 7)).save(out, "JPEG")
        for i in range(8):
            (tmp_path / "a" / f"{i}.jpg").write_bytes(out.getvalue())
        feed = fed(loader_of(tmp_path, PLAIN))
        os.truncate(tmp_path / "a" / "5.jpg", 200)
        batches = iter(feed)
        assert len(next(batches)[0]) == 4
        with pytest.raises(penstock.Error, match=r"Sample 5 of field 'image', .*5\.jpg: "):
            next(batches)
        (tmp_path / "a" / "5.jpg").write_bytes(out.getvalue())
        assert [len(x) for x, _ in feed] == [4, 4]

    def test_an_iterator_ends_with_a_newer_one(self, root):
        feed = fed(loader_of(root))
        older = iter(feed)
        next(older)
        newer = iter(feed)
        assert len(kept(newer)) == 6
        with pytest.raises(penstock.Closed, match="a newer one of this feed"):
            next(older)

    def test_a_sampler_that_fails(self, root):
        class Fails:
            def __iter__(self):
                yield from (1, 2, 3, 4)
                raise KeyError("no more")

            def __len__(self):
                return 8

        batches = iter(fed(loader_of(root, sampler=Fails())))
        assert len(next(batches)[0]) == 4
        with pytest.raises(KeyError):
            next(batches)


def test_the_doctor_knows_what_could_be_decoded(root):
    blur = transforms.Compose([transforms.GaussianBlur(3), TRAIN])
    for transform, expected in ((TRAIN, True), (blur, False)):
        loader = DataLoader(Subset(ImageFolder(root, transform), range(8)), 4)
        assert penstock.diagnose(loader, seconds=0.02).timings.pictures == expected


def tensors_of(version):
    """What makes tensors of float32 of an image."""
    return [version.ToTensor()] if version is transforms else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


def test_pictures_are_what_a_loader_decodes(root):
    """The same numbers as penstock.Pictures with the seed and epoch of the feed."""
    dataset = ImageFolder(root, TRAIN)
    torch.manual_seed(6)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(6)
    [(x, _)] = fed(DataLoader(dataset, COUNT))
    loader = penstock.Loader(penstock.Pictures(root, SIZE, "imagenet"), COUNT, device="host")
    loader.set_epoch(seed)
    [(wanted, targets)] = loader
    assert same(x.numpy(), wanted.numpy()) and targets.tolist() == dataset.targets
