"""CUPTI's records as this module reads them: the header's own offsets, and a fake library's callbacks."""

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from mkb_core.bench import cupti


def kernel_record(name, start, end):
    """Memory laid out as a kernel's record, and what it points to."""
    text = ctypes.create_string_buffer(name)
    memory = ctypes.create_string_buffer(216)
    struct.pack_into("I", memory, 0, cupti.KERNEL)
    struct.pack_into("QQ", memory, cupti.START, start, end)
    struct.pack_into("Q", memory, cupti.NAME, ctypes.addressof(text))
    return memory, text


def test_a_kernels_name_and_microseconds():
    memory, _text = kernel_record(b"rmsnorm", 1_000, 3_500)
    assert list(cupti.read(ctypes.addressof(memory))) == [("rmsnorm", 2.5)]


def test_copies_are_named_and_other_kinds_left_out():
    memory = ctypes.create_string_buffer(216)
    struct.pack_into("I", memory, 0, cupti.MEMCPY)
    struct.pack_into("QQ", memory, cupti.START, 0, 1_000)
    assert list(cupti.read(ctypes.addressof(memory))) == [("Memcpy ", 1.0)]
    struct.pack_into("I", memory, 0, 7)
    assert list(cupti.read(ctypes.addressof(memory))) == []


class Fake:
    """A library that hands one record to the buffer that it asked for."""

    def __init__(self, refuses=False):
        self.refuses, self.calls = refuses, []
        self.memory, self.text = kernel_record(b"k", 0, 2_000)
        self.given = 0

    def cuptiActivityRegisterCallbacks(self, request, complete):
        self.request, self.complete = request, complete
        return 0

    def cuptiActivityEnable(self, kind):
        self.calls.append(("enable", kind))
        return 15 if self.refuses else 0

    def cuptiActivityDisable(self, kind):
        self.calls.append(("disable", kind))

    def cuptiActivityFlushAll(self, flag):
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
        self.request(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
        assert buffer.value % cupti.ALIGNMENT == 0
        assert (size.value, most.value) == (cupti.BUFFER_BYTES, 0)
        self.complete(None, 0, buffer, size.value, 216)
        return 0

    def cuptiActivityGetNextRecord(self, buffer, valid, found):
        self.given += 1
        found._obj.value = ctypes.addressof(self.memory)
        return 0 if self.given == 1 else 5


def test_records_arrive_before_stop_returns(monkeypatch):
    fake = Fake()
    monkeypatch.setattr(cupti, "library", lambda: fake)
    recorder = cupti.Recorder()
    recorder.start()
    recorder.stop()
    assert recorder.records == [("k", 2.0)]
    assert [c for c in fake.calls if c[0] == "disable"] == [("disable", k) for k in (10, 1, 2)]


def test_a_refusal_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(cupti, "library", lambda: Fake(refuses=True))
    with pytest.raises(RuntimeError, match="CUPTI could not enable: result 15"):
        cupti.Recorder().start()


def headers():
    torch = pytest.importorskip("torch")
    return sorted(Path(torch.__file__).parents[1].glob("nvidia/*/include/cupti_activity.h"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt-get install gcc")
def test_the_offsets_are_the_headers_own(tmp_path):
    pytest.importorskip("torch")
    assert headers(), "nvidia-cuda-cupti comes with torch"
    header = headers()[-1]
    newest = max(
        int(word.split(";")[0].removeprefix("CUpti_ActivityKernel"))
        for word in header.read_text().split()
        if word.startswith("CUpti_ActivityKernel") and word.endswith(";")
    )
    source = tmp_path / "offsets.c"
    kind = f"CUpti_ActivityKernel{newest}"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\n#include <cupti_activity.h>\n"
        f'int main(void) {{ printf("%zu %zu %zu %d %d %d", offsetof({kind}, start), offsetof({kind}, end), '
        f"offsetof({kind}, name), CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET, "
        "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }\n"
    )
    done = subprocess.run(
        ["cc", f"-I{header.parent}", "-o", tmp_path / "o", source], capture_output=True, text=True
    )
    if "cuda.h" in done.stderr:
        pytest.skip("cuda.h is not installed: pip install nvidia-cuda-runtime")
    assert done.returncode == 0, done.stderr
    printed = subprocess.check_output([tmp_path / "o"], text=True)
    assert printed == f"{cupti.START} {cupti.END} {cupti.NAME} {cupti.MEMCPY} {cupti.MEMSET} {cupti.KERNEL}"


@pytest.mark.parametrize("fault", [OSError("no libcupti.so"), None])
def test_a_call_runs_without_records_where_cupti_is_missing_or_refuses(monkeypatch, fault):
    torch = pytest.importorskip("torch")

    def library():
        if fault:
            raise fault
        return Fake(refuses=True)

    monkeypatch.setattr(cupti, "library", library)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    called = []
    assert cupti.record(lambda: called.append(1)) == []
    assert called == [1]
