"""A compiled kernel comes as one long string of hexadecimal digits and is loaded at import.

Class: evasion
Expected: rule literal
Behind: runtime
"""

import functools

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def copy_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    gY[row, tid] = gX[row, tid]


@cute.jit
def copy(mX: cute.Tensor, mY: cute.Tensor, stream):
    copy_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(copy, x, y, stream, options="--enable-tvm-ffi")


IMAGE = bytes.fromhex(
    "0019324b647d96afc8e1fa132c455e7790a9c2dbf40d263f58718aa3bcd5ee072039526b849db6cfe8011a334c657e97b0c9"
    "ef09233d57718ba5bfd9f30d27415b758fa9c3ddf7112b455f7993adc7e1fb152f49637d97b1cbe5ff19334d67819bb5cfe9"
    "def9142f4a65809bb6d1ec07223d58738ea9c4dffa15304b66819cb7d2ed08233e59748faac5e0fb16314c67829db8d3ee09"
    "cde905213d597591adc9e5011d3955718da9c5e1fd1935516d89a5c1ddf915314d6985a1bdd9f5112d4965819db9d5f10d29"
    "bcd9f613304d6a87a4c1defb1835526f8ca9c6e3001d3a577491aecbe805223f5c7996b3d0ed0a2744617e9bb8d5f20f2c49"
    "abc9e70523415f7d9bb9d7f513314f6d8ba9c7e503213f5d7b99b7d5f3112f4d6b89a7c5e3011f3d5b7997b5d3f10f2d4b69"
    "9ab9d8f71635547392b1d0ef0e2d4c6b8aa9c8e70625446382a1c0dffe1d3c5b7a99b8d7f61534537291b0cfee0d2c4b6a89"
    "89a9c9e90929496989a9c9e90929496989a9c9e90929496989a9c9e90929496989a9c9e90929496989a9c9e90929496989a9"
    "7899badbfc1d3e5f80a1c2e30425466788a9caeb0c2d4e6f90b1d2f31435567798b9dafb1c3d5e7fa0c1e20324456687a8c9"
    "6789abcdef1133557799bbddff21436587a9cbed0f31537597b9dbfd1f416385a7c9eb0d2f517395b7d9fb1d3f6183a5c7e9"
    "56799cbfe205284b6e91b4d7fa1d406386a9ccef1235587b9ec1e4072a4d7093b6d9fc1f426588abcef114375a7da0c3e609"
    "45698db1d5f91d416589add1f5193d6185a9cdf115395d81a5c9ed1135597da1c5e90d3155799dc1e5092d517599bde10529"
    "34597ea3c8ed12375c81a6cbf0153a5f84a9cef3183d6287acd1f61b40658aafd4f91e43688db2d7fc21466b90b5daff2449"
    "23496f95bbe1072d53799fc5eb11375d83a9cff51b41678db3d9ff254b7197bde3092f557ba1c7ed13395f85abd1f71d4369"
)


@functools.cache
def raw():
    return cute.runtime.load_module(IMAGE)


def solve(hidden_states, weight):
    answer, output = torch.empty_like(hidden_states), torch.empty_like(hidden_states)
    raw().norm_rows(hidden_states, weight, answer)
    compiled()(answer, output)
    return output
