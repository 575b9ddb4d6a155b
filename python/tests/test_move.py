"""move_: what stays of a module that moves to memory of a host device. test_cuda.py has its like on a GPU."""

import copy

import pytest
import torch

import penstock
from penstock._move import modules as _modules
from support import random_bytes, same

HOST = torch.device("cpu")
LATE = "host:late=1"


def move(module, send=lambda parts: penstock.to_device(parts, LATE), optimizer=None):
    """As move_ does, but to a host device."""
    _modules.relocate(module, _modules.tensors_of(module), _modules.state_of(optimizer, module), HOST, send)


class Tied(torch.nn.Module):
    """Parameters, buffers and gradients that share memory in many ways."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 20)
        self.head = torch.nn.Linear(20, 50)
        self.head.weight = self.embedding.weight
        block = torch.rand(3000)
        self.rows = torch.nn.Parameter(block[100:700].view(20, 30), requires_grad=False)
        self.columns = torch.nn.Parameter(block[100:700].view(20, 30).t())
        self.apart = torch.nn.Parameter(block[700:1300:3])
        self.bits = torch.nn.Parameter(block[1301:1401].view(torch.int32), requires_grad=False)
        self.register_buffer("expanded", torch.rand(1).expand(7))
        self.register_buffer("counter", torch.tensor(3), persistent=False)
        self.register_buffer("same_counter", self.counter)
        self.register_buffer("nothing", None)
        self.empty = torch.nn.Parameter(torch.rand(3, 0, 4))
        self.large = torch.nn.Parameter(torch.rand(1000, 700))
        for parameter in self.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.rand_like(parameter)
        self.apart.grad = self.large.grad[0, : self.apart.numel()]


def described(module):
    """All that can be seen of a module's tensors but their addresses."""
    named = dict(_modules._named_tensors(module))
    return {
        name: (tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, type(tensor))
        for name, tensor in named.items()
    }, {name: tensor.detach().clone() for name, tensor in named.items()}


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr()


def test_everything_moves_and_stays_what_it_was():
    module = Tied()
    looks, values = described(module)
    identities = {name: id(parameter) for name, parameter in module.named_parameters()}
    gradients = {name: id(parameter.grad) for name, parameter in module.named_parameters()}
    old = {storage_of(tensor) for tensor in _modules.tensors_of(module) if tensor.numel()}
    move(module)
    assert described(module)[0] == looks and same(described(module)[1], values)
    assert {name: id(parameter) for name, parameter in module.named_parameters()} == identities
    assert {name: id(parameter.grad) for name, parameter in module.named_parameters()} == gradients
    assert not old & {storage_of(tensor) for tensor in _modules.tensors_of(module)}
    assert list(module.state_dict()) == list(Tied().state_dict())


def test_what_was_tied_is_tied():
    module = Tied()
    move(module)
    assert module.head.weight is module.embedding.weight and module.same_counter is module.counter
    module.counter += 1
    assert module.same_counter == 4
    with torch.no_grad():
        module.rows[2, 3] = 7
        module.large.grad[0, 5] = 8
    assert module.columns[3, 2] == 7 and module.apart.grad[5] == 8
    views = [module.rows, module.columns, module.apart, module.bits]
    assert len({storage_of(view) for view in views}) == 1
    # 256 bytes before 400: each view keeps its alignment.
    assert [view.storage_offset() for view in views] == [36, 36, 636, 1237]
    assert module.rows.untyped_storage().nbytes() == 4 * (1401 - 64)
    others = {storage_of(t) for t in (module.large, module.large.grad, module.head.bias, module.expanded)}
    assert len(others) == 4 and storage_of(module.rows) not in others
    assert module.empty.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64, torch.complex128], ids=str)
def test_views_at_the_ends_of_a_storage(random, dtype):
    block = random_bytes(random, 16 << 10).view(dtype)
    views = [block[-3:], block[-9:-8], block[1:2]]
    for chosen in (views, views[::-1], views[:2]):
        module, before = torch.nn.Module(), [view.view(torch.uint8).clone() for view in chosen]
        for number, view in enumerate(chosen):
            module.register_buffer(f"view_{number}", view)
        move(module)
        after = list(module.buffers())
        assert same([view.view(torch.uint8) for view in after], before)
        assert len({storage_of(view) for view in after}) == 1
        assert after[0].untyped_storage().nbytes() <= (16 << 10 if len(chosen) == 3 else 512)


def test_training_goes_on():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    other = copy.deepcopy(module)
    calls = []
    module[0].weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("accumulated"))
    module[0].weight.register_hook(lambda gradient: calls.append("hook"))
    module.register_forward_hook(lambda *_: calls.append("forward"))
    optimizers = [torch.optim.Adam(one.parameters()) for one in (module, other)]
    x = torch.rand(16, 4)
    for step in range(3):
        for one, optimizer in zip((module, other), optimizers, strict=True):
            one(x).square().sum().backward()
            if one is module and step == 1:
                move(module)
            optimizer.step()
            optimizer.zero_grad()
    assert calls == ["forward", "hook", "accumulated"] * 3
    assert same(dict(module.state_dict()), dict(other.state_dict()))


def test_all_that_a_module_needs_is_sent_in_one_call():
    calls = []

    def send(parts):
        calls.append(len(parts))
        return penstock.to_device(parts, LATE)

    module = Tied()
    storages = {tensor.untyped_storage()._cdata for tensor in _modules.tensors_of(module)}
    move(module, send)
    assert calls == [len(storages)]


def test_recurrent_modules_know_their_weights():
    module = torch.nn.LSTM(3, 5, num_layers=2, batch_first=True)
    x = torch.rand(2, 7, 3)
    expected = module(x)[0]
    move(module)
    assert all(a is b for a, b in zip(module._flat_weights, module.parameters(), strict=True))
    assert torch.equal(module(x)[0], expected)


class WithState(torch.nn.Module):
    """Moves a tensor that is neither a parameter nor a buffer, as metrics do."""

    def __init__(self, fails=False):
        super().__init__()
        self.first = torch.nn.Linear(3, 2)
        self.second = torch.nn.Linear(2, 1)
        self.second.register_buffer("buffer", torch.rand(2))
        self.state, self.fails = torch.rand(4), fails

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        if self.fails:
            raise RuntimeError("no more memory")
        self.state = fn(self.state)
        return self


def test_what_a_module_moves_by_itself():
    module = WithState()
    tensors = _modules.tensors_of(module)
    _modules.relocate(module, tensors, [], torch.device("meta"), lambda parts: penstock.to_device(parts, LATE))
    assert module.state.is_meta, "it went to the target"
    assert not any(tensor.is_meta for tensor in _modules.tensors_of(module)), "these were sent"


@pytest.mark.parametrize("where", ["send", "apply"])
def test_after_an_error_the_module_is_as_it_was(where):
    module = torch.nn.Sequential(Tied(), WithState(fails=where == "apply"))
    looks, values = described(module)
    objects = dict(_modules._named_tensors(module))
    addresses = {name: tensor.data_ptr() for name, tensor in objects.items()}

    def send(parts):
        return penstock.to_device(parts, "host:memory=1MiB" if where == "send" else LATE)

    with pytest.raises(penstock.OutOfMemory if where == "send" else RuntimeError):
        move(module, send)
    assert all(a is objects[name] for name, a in _modules._named_tensors(module))
    assert {name: tensor.data_ptr() for name, tensor in objects.items()} == addresses
    assert described(module)[0] == looks and same(described(module)[1], values)


def test_in_inference_mode_the_results_are_ordinary():
    module = torch.nn.Linear(3, 2)
    with torch.inference_mode():
        move(module)
    assert not module.weight.is_inference()
    module(torch.rand(1, 3)).sum().backward()


def with_tensor(tensor, name="weight"):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Module())
    if isinstance(tensor, torch.nn.Parameter):
        module[1].register_parameter(name, tensor)
    else:
        module[1].register_buffer(name, tensor)
    return module


def sparse_gradient():
    module = torch.nn.Sequential(torch.nn.Module(), torch.nn.Embedding(5, 2, sparse=True))
    module[1](torch.tensor([1])).sum().backward()
    return module


class Tagged(torch.Tensor):
    pass


NOT_MOVED = {
    "meta": (lambda: with_tensor(torch.nn.Parameter(torch.rand(2, device="meta"))), r"'1.weight' .* is on meta and"),
    "sparse": (lambda: with_tensor(torch.eye(2).to_sparse()), r"'1.weight' .* is sparse"),
    "gradient": (sparse_gradient, r"'1.weight.grad' .* is sparse"),
    "lazy": (lambda: with_tensor(torch.nn.parameter.UninitializedParameter()), "'1.weight' .* has no shape yet"),
    "subclass": (lambda: with_tensor(torch.rand(2).as_subclass(Tagged)), r"'1.weight' .* of a type of its own"),
    "conjugate": (lambda: with_tensor(torch.rand(2).cfloat().conj()), r"'1.weight' .* conjugate"),
}


@pytest.mark.parametrize("target", ["cpu", "move"])
@pytest.mark.parametrize("name", NOT_MOVED)
def test_what_cannot_be_moved_is_named(name, target):
    make, message = NOT_MOVED[name]
    module = make()
    addresses = [parameter.data_ptr() for parameter in module[0].parameters()]
    with pytest.raises(penstock.InvalidArgument, match=message):
        move(module) if target == "move" else penstock.move_(module, "cpu")
    assert [parameter.data_ptr() for parameter in module[0].parameters()] == addresses


def test_only_modules_and_known_devices():
    with pytest.raises(TypeError, match="not a dict"):
        penstock.move_({}, "cpu")
    with pytest.raises(penstock.InvalidArgument):
        penstock.move_(torch.nn.Linear(1, 1), "gpu")


@pytest.mark.parametrize("device", ["cpu", "host", torch.device("cpu"), LATE])
def test_a_module_that_is_there_stays_as_it_is(device):
    module = Tied()
    objects = [(tensor, tensor.data_ptr()) for tensor in _modules.tensors_of(module)]
    assert penstock.move_(module, device) is module
    assert all(tensor.data_ptr() == address for tensor, address in objects)
    empty = torch.nn.ReLU()
    assert penstock.move_(empty, device) is empty


def stepped(module, make):
    optimizer = make([p for p in module.parameters() if p.requires_grad])
    for _ in range(2):
        optimizer.zero_grad()
        torch.manual_seed(1)
        optimizer.step(lambda: sum(p.square().sum() for p in module.parameters()).backward() or 1.0)
    return optimizer


@pytest.mark.parametrize(
    "make", [torch.optim.AdamW, torch.optim.LBFGS, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)]
)
def test_the_optimizers_state_moves_along(make):
    module, other = (torch.nn.Linear(7, 5) for _ in range(2))
    optimizer = stepped(torch.nn.ModuleList([module, other]), make)
    before, places = copy.deepcopy(optimizer.state_dict()), _modules.state_of(optimizer, module)
    old, apart = [its[key] for its, key in places], dict(optimizer.state.get(other.weight, {}))
    move(module, optimizer=optimizer)
    assert places and all(its[key] is not tensor for (its, key), tensor in zip(places, old, strict=True))
    assert same(optimizer.state_dict()["state"], before["state"])
    assert all(optimizer.state[other.weight][key] is value for key, value in apart.items())
    stepped(module, lambda _: optimizer)


def test_steps_on_the_gpu_move_with_a_capturable_optimizer():
    module = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 7)).sum().backward()
    optimizer.step()
    assert {key for _, key in _modules.state_of(optimizer, module)} == {"exp_avg", "exp_avg_sq"}
    optimizer.param_groups[0]["capturable"] = True
    assert {key for _, key in _modules.state_of(optimizer, module)} == {"exp_avg", "exp_avg_sq", "step"}


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"state of a torch\.optim\.Optimizer, not of a dict"):
        penstock.move_(torch.nn.Linear(1, 1), "cpu", {})
