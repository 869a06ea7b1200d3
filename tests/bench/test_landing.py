"""What comes back from a call: made dense in the call, landed by torch's own C methods, described."""

import pytest

torch = pytest.importorskip("torch")

from mkb_core.bench.landing import Landing  # noqa: E402

FORM = (4, 6)


@pytest.fixture
def landing():
    return Landing([torch.full(FORM, 9.0)])


def land(landing, value, arguments=()):
    kind, values = landing.collect(value)
    return kind, values, landing.land(values, list(arguments))


def test_a_dense_tensor_is_landed_and_not_copied_in_the_call(landing):
    value = torch.arange(24.0).view(FORM)
    kind, values, (output,) = land(landing, value)
    assert kind == "tensor"
    assert values[0] is value
    assert (output.dtype, output.shape, output.landed) == ("float32", FORM, True)
    assert torch.equal(landing.buffers[0], value)


def test_a_strided_tensor_is_made_dense_in_the_call(landing):
    value = torch.arange(24.0).view(6, 4).t()
    _, values, (output,) = land(landing, value)
    assert values[0].is_contiguous()
    assert output.landed
    assert torch.equal(landing.buffers[0], value)


def test_methods_of_the_instance_are_not_asked(landing):
    value = torch.ones(FORM)
    for name in ("detach", "numel", "stride", "data_ptr", "is_contiguous", "contiguous", "untyped_storage"):
        setattr(value, name, lambda *a: pytest.fail("the submission's own code ran while its result was landed"))
    _, _, (output,) = land(landing, value, [value])
    assert (output.landed, output.alias) == (True, 0)


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(4, 5),
        torch.ones(FORM, dtype=torch.float64),
        torch.ones(FORM).to_sparse(),
        torch.ones(FORM, device="meta"),
        torch.ones(1).expand(FORM).to(torch.float16),
    ],
)
def test_what_is_of_another_form_is_described_and_not_landed(landing, value):
    _, _, (output,) = land(landing, value)
    assert not output.landed
    assert (landing.buffers[0] == 9).all()


def test_a_view_of_a_storage_that_is_gone_is_not_landed(landing):
    value = torch.ones(FORM)
    value.untyped_storage().resize_(0)
    assert not land(landing, value)[2][0].landed
    strided = torch.ones(6, 4).t()
    strided.untyped_storage().resize_(0)
    assert not land(landing, strided)[2][0].landed


def test_a_broadcast_view_of_any_size_is_not_written_out(landing):
    value = torch.ones(1).expand(1 << 40)
    _, values, (output,) = land(landing, value)
    assert values[0] is value
    assert (output.shape, output.landed) == ((1 << 40,), False)


@pytest.mark.parametrize(("value", "kind", "count"), [(None, "other", 0), ((), "tuple", 0), ([1, "x"], "list", 2)])
def test_what_is_no_tensor(landing, value, kind, count):
    found, _, outputs = land(landing, value)
    assert (found, len(outputs)) == (kind, count)
    assert all(not output.landed for output in outputs)


def test_a_subclass_is_named_as_unknown(landing):
    assert land(landing, [torch.nn.Parameter(torch.ones(FORM))])[2][0].dtype == "?"


def test_a_million_outputs_are_cut(landing):
    assert len(land(landing, [torch.ones(1)] * 1_000_000)[2]) == 32
