"""`penstock run --feed`: programs do the same with it as without, and what it says of their DataLoaders."""

from ahead_programs import side_by_side
from support import HAS_GPU


def test_programs_get_what_they_would_get(tmp_path):
    assert side_by_side(
        tmp_path,
        """
        def mixed(loader, epochs=2, stop=99):
            for epoch in range(epochs):
                for i, (x, y) in enumerate(loader):
                    x, y = x.to(device, non_blocking=True), y.to(device=device)
                    say(i, x, y, x.stride(), torch.rand(1), random.random(), numpy.random.rand())
                    if i == stop:
                        break
            say(torch.rand(1))

        def errors():
            loader = DataLoader(Numbers(), 2, num_workers=1, sampler=[*range(12), 999, *range(12, 20)])
            iterator = iter(loader)
            say(isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter), len(iterator))
            for i in range(12):
                try:
                    x, y = next(iterator)
                    say(x.to(device), y.to(device))
                except (ValueError, StopIteration) as error:
                    say(type(error), str(error).rpartition("ValueError")[2])

        def several():
            loader = DataLoader(Numbers(), 2, num_workers=1)
            mixed(loader, 1)
            for (x, _), (z, _) in zip(loader, loader):
                say(x.to(device), z.to(device))
            for i, (x, _) in enumerate(loader):
                if i % 5 == 0:
                    for z, _ in loader:
                        say(z.to(device).sum())
                say(x.to(device))

        Pair = collections.namedtuple("Pair", "x y")
        class Mine(DataLoader):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                self.mine = 3
            def __iter__(self):
                for x, y in super().__iter__():
                    yield Pair(x, {"y": [y, "text"]})

        class Generates(DataLoader):
            def _get_iterator(self):
                yield from super()._get_iterator()

        def subclass():
            for x, y in Generates(Numbers(), 2, num_workers=1):
                say(x.to(device), y.to(device))
            loader = Mine(Numbers(), 2, num_workers=1)
            say(len(loader), loader.mine, loader.batch_size, type(loader).__name__)
            for x, nest in loader:
                say(x.to(device), nest["y"][0].to(device))

        say("sitecustomize" in sys.modules, sys.own == sys.modules["sitecustomize"].__file__)
        say([os.path.basename(folder) for folder in sys.path if os.path.basename(folder).startswith("hook")])
        mixed(DataLoader(Numbers(), 2, shuffle=True, num_workers=2, persistent_workers=True))
        mixed(DataLoader(Numbers(), 2, num_workers=2), 3, stop=6)
        errors()
        for _ in range(3):
            mixed(DataLoader(Numbers(8), 2, num_workers=1), 1)
        several()
        subclass()
        """,
    ) == [19, 16, 5, 8, 79, 7]


def test_programs_see_their_batches_on_the_host(tmp_path):
    assert side_by_side(
        tmp_path,
        """
        def loop(use, loader):
            for i, (x, y) in enumerate(loader):
                use(i, x, y)

        def looks(i, x, y):
            say(x[0], y.numpy(), repr(x))
            say(x.to(device), y.to(device), x.numpy())

        def writes_now_and_then(i, x, y):
            if i in (7, 10):
                x[0] = -1
            if i in (8, 11):
                x[1:].numpy()[:] = -2
            say(x.to(device), y)

        def copies_twice(i, x, y):
            first = x.to(device)
            first += 1
            say(first, x.cuda() if device != "cpu" else x.to(device), x)

        def keeps(i, x, y):
            kept.append((x, x.to(device), y.to(device)))

        def converts(i, x, y):
            say(x.to(device), y.to(device, torch.float64), x.to(torch.float16), x.to(device, copy=True))

        kept = []
        loop(looks, DataLoader(Numbers(32), 2, num_workers=1))
        loop(writes_now_and_then, DataLoader(Numbers(32), 2, num_workers=1))
        loop(keeps, DataLoader(Numbers(32), 2, num_workers=1))
        loop(converts, DataLoader(Numbers(32), 2, num_workers=1))
        say(*(tensor for batch in kept for tensor in batch))
        if device == "cpu":
            torch.Tensor._copied = torch.Tensor.to
            torch.Tensor.to = lambda self, *a, **k: self._copied(*a, **k).clone()  # PyTorch copies to no "cpu"
        loop(copies_twice, DataLoader(Numbers(32), 2, num_workers=1))
        compiled = torch.compile(lambda x: x.to(device) * 2, backend="eager", fullgraph=True)
        loop(lambda i, x, y: say(compiled(x), y.to(device)), DataLoader(Numbers(32), 2, num_workers=1))
        """,
    ) == [11, 7, 11, 11, 11, 11]


def test_loaders_that_are_left_alone(tmp_path):
    reasons = side_by_side(
        tmp_path,
        """
        class Draws(torch.utils.data.Sampler):
            def __iter__(self):
                return (random.randrange(24) for _ in range(24))
            def __len__(self):
                return 24

        def loop(use, loader):
            for i, (x, y) in enumerate(loader):
                use(i, x, y)
                say(x, y, random.random())

        def late(i, x, y, before=[]):
            before.append(x)
            say(before[max(0, i - 4)].to(device))

        def two(i, x, y):
            say(x.to(device), y.to(other).shape, y.to(device))

        loop(lambda i, x, y: None, DataLoader(Numbers(), 2, num_workers=1))
        loop(lambda i, x, y: x.float().add(1).to(device), DataLoader(Numbers(), 2, num_workers=1))
        loop(lambda i, x, y: x.add_(1).to(device), DataLoader(Numbers(), 2, num_workers=1))
        loop(lambda i, x, y: x.data.mul_(2).sum() and x.to(device), DataLoader(Numbers(), 2, num_workers=1))
        loop(lambda i, x, y: x.numpy().fill(7) or x.to(device), DataLoader(Numbers(), 2, num_workers=1))
        loop(lambda i, x, y: x.to(device), DataLoader(Numbers(), 2))
        loop(lambda i, x, y: x.to(device), DataLoader(Numbers(), 2, sampler=Draws(), num_workers=1))
        loop(lambda i, x, y: x.to(device) if i < 7 else None, DataLoader(Numbers(), 2, num_workers=1))
        loop(late, DataLoader(Numbers(), 2, num_workers=1))
        with torch.inference_mode():
            loop(lambda i, x, y: x.to(device), DataLoader(Numbers(), 2, num_workers=1))
        loop(lambda i, x, y: x.to(device), DataLoader(Numbers(8), 2, num_workers=1))
        if device != other:
            loop(two, DataLoader(Numbers(), 2, num_workers=1))
        """,
    )
    not_copied = "its batches are not copied to a GPU as they come"
    changed = "its batches changed before they were copied"
    assert reasons == [
        not_copied,
        not_copied,
        changed,
        changed,
        not_copied,
        "it has no workers, which could make batches ahead of the program",
        "reading ahead would change the program's random numbers: its sampler draws from them",
        "the program stopped copying its batches",
        not_copied,
        not_copied,
        "too few of its batches were seen",
        *([] if HAS_GPU else ["they went to several devices"]),
    ]


def test_a_batch_that_cannot_be_sent(tmp_path):
    assert side_by_side(
        tmp_path,
        """
        if os.environ["FED"]:
            from penstock._feed.iterator import FeedIterator
            send, sent = FeedIterator._send, []

            def fails_once(self, batch, slot):
                sent.append(batch)
                if len(sent) == 4:
                    raise MemoryError("no room")
                return send(self, batch, slot)

            FeedIterator._send = fails_once
        loader = DataLoader(Numbers(), 2, num_workers=1)
        for epoch in range(2):
            for x, y in loader:
                say(x.to(device), y.to(device))
        """,
    ) == ["a batch could not be sent: no room"]
