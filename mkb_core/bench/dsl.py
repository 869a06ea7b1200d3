"""The DSLs of the benchmark; a third one is one entry."""

from typing import Literal

from mkb_core.config import Record, unknown


class DSL(Record):
    """One kernel DSL: what a submission may import, and where an agent reads about it."""

    key: str
    title: str
    package: str  # as on PyPI, with the pinned version in pyproject.toml
    modules: tuple[str, ...]  # import roots that a kernel in this DSL may use
    documentation: tuple[str, ...]  # where the sandbox holds documentation and examples
    compile_hint: str  # how a kernel is built where there is no GPU


DSLS = {
    dsl.key: dsl
    for dsl in (
        DSL(
            key="cutedsl",
            title="CuTe DSL",
            package="nvidia-cutlass-dsl",
            modules=("cutlass", "cuda"),
            documentation=(
                "https://docs.nvidia.com/cutlass/latest/media/docs/pythonDSL/cute_dsl.html",
                "the installed package: python3 -c 'import cutlass; print(cutlass.__path__)'",
            ),
            compile_hint="cute.compile works without a GPU; CUTE_DSL_ARCH=sm_90a is set for you",
        ),
        DSL(
            key="tirx",
            title="TIRx",
            package="apache-tvm",
            modules=("tvm", "tvm_ffi"),
            documentation=(
                "https://tvm.apache.org/docs/tirx/",
                "the installed package: python3 -c 'import tvm; print(tvm.__path__)'",
            ),
            compile_hint='tvm.compile works without a GPU for the target {"kind": "cuda", "arch": "sm_90a"}',
        ),
    )
}

Direction = Literal["cutedsl2tirx", "tirx2cutedsl"]


def get_dsl(key: str) -> DSL:
    """The DSL of this key; raises ValueError listing the keys that exist."""
    if key not in DSLS:
        raise unknown("DSL", key, DSLS)
    return DSLS[key]
