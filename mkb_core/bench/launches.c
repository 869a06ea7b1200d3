// Counts, suppresses or replaces by a copy every kernel launch of the two DSLs, below Python.
//
// Preloaded into the process that runs a submission. CuTe DSL's host code launches through _cudaLaunchKernelEx of
// libcute_dsl_runtime.so; TIRx's through cuLaunchKernelEx, which libtvm_runtime_cuda.so binds by symbol. PyTorch and
// the CUDA runtime look the driver's functions up by address, so their launches do not pass here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t gx, gy, gz, bx, by, bz; size_t shared; void *stream; void *attrs; unsigned n; } RuntimeConfig;
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; void *stream; void *attrs; unsigned n; } DriverConfig;

enum { MOST = 16 };
static int suppressed, source, destination;
static uint64_t launches, pointers, copy_bytes;

// Suppression is a latch: nothing in this library takes it back.
void mkb_suppress(void) { suppressed = 1; }
// source == destination: no copy
void mkb_begin(int from, int to, uint64_t bytes) {
  launches = pointers = 0;
  source = from, destination = to, copy_bytes = bytes;
}
uint64_t mkb_launches(void) { return launches; }
uint64_t mkb_pointers(void) { return pointers; }

static void *driver(const char *name) {
  static void *library;
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
  return library ? dlsym(library, name) : NULL;
}

static void *runtime(const char *name) {
  static void *library;
  const char *path = getenv("MKB_CUTE_RUNTIME");
  if (!library && path) library = dlopen(path, RTLD_NOW);
  return library ? dlsym(library, name) : NULL;
}

// The device pointers among a kernel's parameters, in order: every aligned word that the driver knows as one.
static int find_pointers(void *function, int is_kernel, void **arguments, uint64_t *found) {
  int (*info)(void *, size_t, size_t *, size_t *) = driver(is_kernel ? "cuKernelGetParamInfo" : "cuFuncGetParamInfo");
  int (*range)(uint64_t *, size_t *, uint64_t) = driver("cuMemGetAddressRange_v2");
  int count = 0;
  size_t offset, size;
  for (size_t i = 0; info && range && count < MOST && !info(function, i, &offset, &size); i++)
    for (size_t at = 0; at + 8 <= size && count < MOST; at += 8) {
      uint64_t word, base;
      size_t length;
      memcpy(&word, (char *)arguments[i] + at, 8);
      if (word > 0xFFFF && !range(&base, &length, word)) found[count++] = word;
    }
  return count;
}

// 1: the launch is dropped (and, if asked for, replaced by a copy between two of its buffers)
static int intercept(void *function, int is_kernel, void **arguments) {
  launches++;
  if (!suppressed) return 0;
  uint64_t found[MOST], base;
  size_t length;
  int count = find_pointers(function, is_kernel, arguments, found);
  if ((uint64_t)count > pointers) pointers = count;
  if (source == destination || source >= count || destination >= count) return 1;
  int (*range)(uint64_t *, size_t *, uint64_t) = driver("cuMemGetAddressRange_v2");
  int (*copy)(uint64_t, uint64_t, size_t) = driver("cuMemcpyDtoD_v2");
  int (*wait)(void) = driver("cuCtxSynchronize");
  uint64_t ends[2] = {found[source], found[destination]};
  uint64_t bytes = copy_bytes;
  for (int i = 0; i < 2; i++) {
    if (range(&base, &length, ends[i])) return 1;
    if (base + length - ends[i] < bytes) bytes = base + length - ends[i];
  }
  if (ends[0] != ends[1]) wait(), copy(ends[1], ends[0], bytes), wait();
  return 1;
}

int _cudaLaunchKernelEx(RuntimeConfig *config, void *function, void **arguments) {
  static int (*real)(RuntimeConfig *, void *, void **);
  if (!real) real = runtime("_cudaLaunchKernelEx");
  if (intercept(function, 1, arguments)) return 0;
  return real ? real(config, function, arguments) : 999;
}

int _cudaLaunchKernel(void *function, int a, int b, int c, int d, int e, int f, void *arguments, int64_t shared, void *stream) {
  static int (*real)(void *, int, int, int, int, int, int, void *, int64_t, void *);
  if (!real) real = runtime("_cudaLaunchKernel");
  if (intercept(function, 1, arguments)) return 0;
  return real ? real(function, a, b, c, d, e, f, arguments, shared, stream) : 999;
}

int cuLaunchKernelEx(const DriverConfig *config, void *function, void **arguments, void **extra) {
  static int (*real)(const DriverConfig *, void *, void **, void **);
  if (!real) real = driver("cuLaunchKernelEx");
  if (intercept(function, 0, arguments)) return 0;
  return real ? real(config, function, arguments, extra) : 999;
}

int cuLaunchKernel(void *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned shared,
                   void *stream, void **arguments, void **extra) {
  static int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  if (!real) real = driver("cuLaunchKernel");
  if (intercept(function, 0, arguments)) return 0;
  return real ? real(function, a, b, c, d, e, f, shared, stream, arguments, extra) : 999;
}
