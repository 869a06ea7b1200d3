"""Kernels by name and time: whose they are, and whether eager did the whole work."""

import pytest

from mkb_core.bench.devicekernels import Profile, covers, fits, gather, profile, share

CUTE = (
    "kernel_cutlass_rmsnorm_kernel_tensorptrbf16gmemalign16o1281281_"
    + "tensorptrbf16gmemalign16o1281281_" * 6
    + "0"
)
REDUCE = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
    "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)"
)
MULTIPLY = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, float)"
)
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >(int)"
)
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}::operator()() const>(int)"
)
EAGER = Profile(
    [(REDUCE, 1, 8.0), (MULTIPLY, 2, 9.0), (CAST, 2, 4.0), ("Memset (Device)", 1, 1.0), (FILL, 1, 1.0)]
)


def test_records_are_added_up_by_name():
    found = gather([("a", 2.5), ("Memcpy ", 5.0), ("a", 1.0)])
    assert found.kernels == [("Memcpy ", 1, 5.0), ("a", 2, 3.5)]


def test_shares_add_up_to_one_and_transfers_stand_apart():
    found = share(Profile([("mine", 2, 60.0), (REDUCE, 1, 30.0), ("Memset (Device)", 1, 10.0)]), {"mine": 2})
    assert found.dsl == pytest.approx(0.6)
    assert found.others == [(REDUCE, 1, pytest.approx(0.3))]
    assert found.transfers == [("Memset (Device)", 1, pytest.approx(0.1))]


def test_a_call_without_device_work_has_no_share():
    assert share(Profile(), {"mine": 1}).dsl == 0.0
    assert share(Profile([("x", 1, 0.0)]), {}).others == [("x", 1, 0.0)]


def test_a_forged_name_counts_only_as_often_as_the_shim_saw_it():
    found = share(Profile([("rmsnorm_kernel", 4, 100.0)]), {"rmsnorm_kernel": 1})
    assert found.dsl == pytest.approx(0.25)
    assert found.others == [("rmsnorm_kernel", 3, pytest.approx(0.75))]
    assert share(Profile([("rmsnorm_kernel", 1, 5.0)]), {}).dsl == 0.0


def test_a_cut_name_does_not_take_the_launches_of_an_exact_one():
    longer = CUTE[:120] + "_another"
    found = share(Profile([(longer, 1, 1.0), (CUTE[:120], 1, 1.0)]), {CUTE[:120]: 1})
    assert found.others == [(longer, 1, 0.5)]
    assert share(Profile([(CUTE, 1, 1.0)]), {CUTE[:255]: 1}).dsl == 1.0


@pytest.mark.parametrize(
    ("profiled", "symbol", "expected"),
    [
        ("rmsnorm_kernel", "rmsnorm_kernel", True),
        ("void rmsnorm_kernel<float>(float*, int)", "rmsnorm_kernel", True),
        ("rmsnorm_kernel(float*)", "_Z14rmsnorm_kernelPf", True),
        (CUTE, CUTE[:255], True),
        (CUTE[:150], CUTE[:255], True),
        ("rmsnorm_kernel_2", "rmsnorm_kernel", False),
        ("rms", "rmsnorm_kernel", False),
        (REDUCE, "reduce_kernel", False),
        (CUTE[:150] + "x", CUTE[:255], False),
        ("", "rmsnorm_kernel", False),
    ],
)
def test_names_fit(profiled, symbol, expected):
    assert fits(profiled, symbol) is expected


def test_eager_did_it_all_when_its_computing_kernels_are_all_there():
    assert covers([(MULTIPLY, 3, 0.5), (REDUCE, 1, 0.4)], EAGER)
    assert covers([*EAGER.kernels, ("another", 1, 0.1)], EAGER)


@pytest.mark.parametrize(
    "others", [[], [(REDUCE, 1, 0.5)], [(REDUCE, 1, 0.5), (MULTIPLY, 1, 0.5)], [(CAST, 9, 1.0)]]
)
def test_eager_did_not_do_it_all(others):
    assert not covers(others, EAGER)
    assert not covers(others, Profile([(FILL, 1, 1.0), ("Memset (Device)", 1, 1.0)]))


@pytest.mark.gpu
@pytest.mark.dsl
def test_a_real_call_is_profiled():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: nothing here can stand in for the profiler of one")
    x = torch.ones(1 << 20, device="cuda")
    found = profile(lambda: (x * 2, x.clone()))
    counts = {name: count for name, count, _ in found.kernels}
    assert sum(count for name, count in counts.items() if "MulFunctor" in name) == 1
    assert any(name.startswith("Memcpy ") for name in counts)
    assert share(found, {}).dsl == 0.0
