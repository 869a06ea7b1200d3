// Counts, names, suppresses, perturbs or replaces by a copy every kernel launch of the two DSLs, below Python; notes
// graph captures and every device module that the DSL's compiler did not make.
//
// Preloaded into the process that runs a submission. CuTe DSL's host code launches through _cudaLaunchKernelEx of
// libcute_dsl_runtime.so; TIRx's through cuLaunchKernelEx, which libtvm_runtime_cuda.so binds by symbol. PyTorch and
// the CUDA runtime look the driver's functions up by address, so their launches and modules do not pass here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t gx, gy, gz, bx, by, bz; size_t shared; void *stream; void *attrs; unsigned n; } RuntimeConfig;
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; void *stream; void *attrs; unsigned n; } DriverConfig;
typedef uint64_t (*Function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

enum { MOST = 16, NAMES = 64, NAME_BYTES = 256, NOTES = 32, NOTE_BYTES = 256, NOT_FOUND = 500 };
static int suppressed, source, destination, perturbed = -1;
static uint64_t launches, pointers, copy_bytes;
static struct { char name[NAME_BYTES]; uint64_t count; } names[NAMES];
static char notes[NOTES][NOTE_BYTES];
static int name_count, note_count;
static char failure[400];
static uint64_t *allowed;
static size_t allowed_count, allowed_room;

static char busy;
static void lock(void) { while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) {} }
static void unlock(void) { __atomic_clear(&busy, __ATOMIC_RELEASE); }

// Suppression is a latch: nothing in this library takes it back.
void mkb_suppress(void) { suppressed = 1; }
// -1: off
void mkb_perturb(int index) { perturbed = index; }
// source == destination: no copy
void mkb_begin(int from, int to, uint64_t bytes) {
  lock();
  launches = pointers = 0, name_count = 0, failure[0] = 0;
  source = from, destination = to, copy_bytes = bytes;
  unlock();
}
uint64_t mkb_launches(void) { return launches; }
// What the first launch that failed since mkb_begin was; empty where none did
const char *mkb_failure(void) { return failure; }
uint64_t mkb_pointers(void) { return pointers; }
// NULL past the last
const char *mkb_name(int i, uint64_t *count) {
  if (i < 0 || i >= name_count) return NULL;
  *count = names[i].count;
  return names[i].name;
}
const char *mkb_violation(int i) { return i >= 0 && i < note_count ? notes[i] : NULL; }

// "rule<tab>text", once
static void note(const char *rule, const char *text) {
  char line[NOTE_BYTES];
  int known = 0;
  snprintf(line, sizeof line, "%s\t%s", rule, text);
  lock();
  for (int i = 0; i < note_count && !known; i++) known = !strcmp(notes[i], line);
  if (!known && note_count < NOTES) memcpy(notes[note_count++], line, sizeof line);
  unlock();
}

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

// What the caller would have reached without this library. A CUDA runtime that was loaded privately is not in the
// global scope, so it is asked by its file name.
static void *next(const char *name) {
  static const char *const loaded[] = {"libcudart.so.13", "libcudart.so.12"};
  void *found = dlsym(RTLD_NEXT, name);
  for (int i = 0; !found && i < 2; i++) {
    void *library = dlopen(loaded[i], RTLD_NOW | RTLD_NOLOAD);
    if (library) found = dlsym(library, name), dlclose(library);
  }
  return found ? found : driver(name);
}

// NOT_FOUND is the code of "symbol not found" for the driver and for the runtime
static int missing(const char *name) {
  fprintf(stderr, "metakernelbench: no CUDA library of this process has %s\n", name);
  return NOT_FOUND;
}

static const char *name_of(void *function, int is_kernel) {
  static int (*get[2])(const char **, void *);  // looked up once: this is in the time of every call
  const char *name = NULL;
  if (!get[is_kernel]) get[is_kernel] = driver(is_kernel ? "cuKernelGetName" : "cuFuncGetName");
  return !get[is_kernel] || get[is_kernel](&name, function) || !name ? "unknown" : name;
}

static void count_name(void *function, int is_kernel) {
  const char *name = name_of(function, is_kernel);
  lock();
  int i = 0;
  while (i < name_count && strncmp(names[i].name, name, NAME_BYTES - 1)) i++;
  if (i == NAMES) i = NAMES - 1, strcpy(names[i].name, "(more)");
  if (i == name_count) {
    name_count++, names[i].count = 0;
    snprintf(names[i].name, NAME_BYTES, "%s", name);
  }
  names[i].count++;
  launches++;
  unlock();
}

// The device pointers among a kernel's parameters, in order: every aligned word that the driver knows as one.
static int find_pointers(void *function, int is_kernel, void **arguments, uint64_t *found) {
  int (*info)(void *, size_t, size_t *, size_t *) = driver(is_kernel ? "cuKernelGetParamInfo" : "cuFuncGetParamInfo");
  int (*range)(uint64_t *, size_t *, uint64_t) = driver("cuMemGetAddressRange_v2");
  int count = 0;
  size_t offset, size;
  for (size_t i = 0; arguments && info && range && count < MOST && !info(function, i, &offset, &size); i++)
    for (size_t at = 0; at + 8 <= size && count < MOST; at += 8) {
      uint64_t word, base;
      size_t length;
      memcpy(&word, (char *)arguments[i] + at, 8);
      if (word > 0xFFFF && !range(&base, &length, word)) found[count++] = word;
    }
  if ((uint64_t)count > pointers) pointers = count;
  return count;
}

// Bytes from a pointer to the end of its allocation, at most `copy_bytes`; 0 where the driver does not know it
static uint64_t room(uint64_t pointer) {
  int (*range)(uint64_t *, size_t *, uint64_t) = driver("cuMemGetAddressRange_v2");
  uint64_t base;
  size_t length;
  if (!range || range(&base, &length, pointer)) return 0;
  uint64_t bytes = base + length - pointer;
  return bytes < copy_bytes ? bytes : copy_bytes;
}

// 1: the launch is dropped (and, if asked for, replaced by a copy between two of its buffers)
static int intercept(void *function, int is_kernel, void **arguments) {
  count_name(function, is_kernel);
  if (!suppressed) return 0;
  uint64_t found[MOST];
  int count = find_pointers(function, is_kernel, arguments, found);
  if (source == destination || source >= count || destination >= count) return 1;
  int (*copy)(uint64_t, uint64_t, size_t) = driver("cuMemcpyDtoD_v2");
  int (*wait)(void) = driver("cuCtxSynchronize");
  uint64_t from = found[source], to = found[destination], bytes = room(from);
  if (room(to) < bytes) bytes = room(to);
  if (copy && wait && from != to && bytes) wait(), copy(to, from, bytes), wait();
  return 1;
}

// After a launch that took place: the middle half of the chosen buffer is overwritten. The ends keep what the kernel
// wrote, so that a submission can not tell by a glance at the first element.
static int launched(int status, void *function, int is_kernel, void **arguments, uint64_t shared) {
  // the DSLs' host code does not always look at this
  if (status && !failure[0])
    snprintf(failure, sizeof failure, "kernel %.200s could not be launched: CUDA error %d (%llu bytes of dynamic shared memory)",
             name_of(function, is_kernel), status, (unsigned long long)shared);
  if (status || perturbed < 0) return status;
  uint64_t found[MOST];
  int count = find_pointers(function, is_kernel, arguments, found);
  int (*fill)(uint64_t, unsigned char, size_t) = driver("cuMemsetD8_v2");
  int (*wait)(void) = driver("cuCtxSynchronize");
  if (perturbed >= count || !fill || !wait || wait()) return status;
  uint64_t bytes = room(found[perturbed]);
  if (bytes / 2) fill(found[perturbed] + bytes / 4, 0x3C, bytes / 2), wait();
  return status;
}

int _cudaLaunchKernelEx(RuntimeConfig *config, void *function, void **arguments) {
  static int (*real)(RuntimeConfig *, void *, void **);
  if (!real) real = runtime("_cudaLaunchKernelEx");
  if (intercept(function, 1, arguments)) return 0;
  return real ? launched(real(config, function, arguments), function, 1, arguments, config ? config->shared : 0) : missing("_cudaLaunchKernelEx");
}

int _cudaLaunchKernel(void *function, int a, int b, int c, int d, int e, int f, void *arguments, int64_t shared, void *stream) {
  static int (*real)(void *, int, int, int, int, int, int, void *, int64_t, void *);
  if (!real) real = runtime("_cudaLaunchKernel");
  if (intercept(function, 1, arguments)) return 0;
  if (!real) return missing("_cudaLaunchKernel");
  return launched(real(function, a, b, c, d, e, f, arguments, shared, stream), function, 1, arguments, shared);
}

int cuLaunchKernelEx(const DriverConfig *config, void *function, void **arguments, void **extra) {
  static int (*real)(const DriverConfig *, void *, void **, void **);
  if (!real) real = driver("cuLaunchKernelEx");
  if (intercept(function, 0, arguments)) return 0;
  return real ? launched(real(config, function, arguments, extra), function, 0, arguments, config ? config->shared : 0) : missing("cuLaunchKernelEx");
}

int cuLaunchKernel(void *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned shared,
                   void *stream, void **arguments, void **extra) {
  static int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  if (!real) real = driver("cuLaunchKernel");
  if (intercept(function, 0, arguments)) return 0;
  if (!real) return missing("cuLaunchKernel");
  return launched(real(function, a, b, c, d, e, f, shared, stream, arguments, extra), function, 0, arguments, shared);
}

// ---- Graphs. The arguments of all these fit six registers and are passed on unread.
#define GRAPH(name, find, text)                                                                          \
  uint64_t name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {                \
    static Function real;                                                                                \
    if (!real) real = (Function)find(#name);                                                             \
    note("graph", text);                                                                                 \
    return real ? real(a, b, c, d, e, f) : (uint64_t)missing(#name);                                     \
  }
#define CAPTURE(name, find) GRAPH(name, find, "stream capture during a call")
#define INSTANTIATE(name, find) GRAPH(name, find, "a CUDA graph was instantiated")
#define LAUNCH(name, find) GRAPH(name, find, "a CUDA graph was launched")

CAPTURE(cudaStreamBeginCapture, next)
CAPTURE(cudaStreamBeginCapture_ptsz, next)
CAPTURE(cudaStreamBeginCaptureToGraph, next)
CAPTURE(cudaStreamBeginCaptureToGraph_ptsz, next)
CAPTURE(cuStreamBeginCapture, next)
CAPTURE(cuStreamBeginCapture_ptsz, next)
CAPTURE(cuStreamBeginCapture_v2, next)
CAPTURE(cuStreamBeginCapture_v2_ptsz, next)
CAPTURE(cuStreamBeginCaptureToGraph, next)
CAPTURE(cuStreamBeginCaptureToGraph_ptsz, next)
CAPTURE(_cudaStreamBeginCapture, runtime)
INSTANTIATE(cudaGraphInstantiate, next)
INSTANTIATE(cudaGraphInstantiateWithFlags, next)
INSTANTIATE(cudaGraphInstantiateWithParams, next)
INSTANTIATE(cudaGraphInstantiateWithParams_ptsz, next)
INSTANTIATE(cuGraphInstantiate, next)
INSTANTIATE(cuGraphInstantiate_v2, next)
INSTANTIATE(cuGraphInstantiateWithFlags, next)
INSTANTIATE(cuGraphInstantiateWithParams, next)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, next)
INSTANTIATE(_cudaGraphInstantiate, runtime)
LAUNCH(cudaGraphLaunch, next)
LAUNCH(cudaGraphLaunch_ptsz, next)
LAUNCH(cuGraphLaunch, next)
LAUNCH(cuGraphLaunch_ptsz, next)
LAUNCH(_cudaGraphLaunch, runtime)

// ---- Modules
static uint64_t word(const unsigned char *at, int bytes) {
  uint64_t value = 0;
  memcpy(&value, at, bytes);
  return value;
}

// The end of an ELF file: the furthest of its section table, program table and sections. Cubins end with any of them.
static uint64_t elf_bytes(const unsigned char *image) {
  uint64_t programs = word(image + 0x20, 8), sections = word(image + 0x28, 8), section_bytes = word(image + 0x3A, 2);
  uint64_t count = word(image + 0x3C, 2), most = sections + section_bytes * count;
  if (programs + word(image + 0x36, 2) * word(image + 0x38, 2) > most)
    most = programs + word(image + 0x36, 2) * word(image + 0x38, 2);
  for (uint64_t i = 0; i < count; i++) {
    const unsigned char *section = image + sections + i * section_bytes;
    uint64_t end = word(section + 0x18, 8) + word(section + 0x20, 8);
    if (word(section + 4, 4) != 8 /* SHT_NOBITS */ && end > most) most = end;
  }
  return most;
}

// An image says itself how long it is: a wrapper or a fat binary by its header, a cubin by its tables, PTX by its NUL.
static const unsigned char *measure(const unsigned char *image, uint64_t *bytes) {
  if (word(image, 1) == 0x7F && !memcmp(image + 1, "ELF", 3)) return *bytes = elf_bytes(image), image;
  // one byte at a time: a short text may end before the fourth
  if (image[0] == 0xB1 && image[1] == 'C' && image[2] == 'b' && image[3] == 'F')
    return measure((const unsigned char *)word(image + 8, 8), bytes);
  if (image[0] == 0x50 && image[1] == 0xED && image[2] == 0x55 && image[3] == 0xBA)
    return *bytes = word(image + 6, 2) + word(image + 8, 8), image;
  return *bytes = strlen((const char *)image), image;
}

// 64-bit FNV-1a over the whole image
uint64_t mkb_digest(const void *image) {
  uint64_t bytes, digest = 0xCBF29CE484222325u;
  const unsigned char *start = measure(image, &bytes);
  for (uint64_t i = 0; i < bytes; i++) digest = (digest ^ start[i]) * 0x100000001B3u;
  return digest;
}

void mkb_allow(uint64_t digest) {
  lock();
  if (allowed_count == allowed_room) {
    size_t more = allowed_room ? 2 * allowed_room : 64;
    uint64_t *grown = realloc(allowed, more * sizeof *grown);
    if (grown) allowed = grown, allowed_room = more;
  }
  if (allowed_count < allowed_room) allowed[allowed_count++] = digest;
  unlock();
}

// PyTorch's own lazy loading may come by symbol (libcaffe2_nvrtc.so); what those libraries load is not a submission's.
static int of_torch(const void *caller) {
  static const char *const owners[] = {"libtorch", "libc10", "libcaffe2", "libcublas", "libcudnn", "libcufft",
                                       "libcusolver", "libcusparse", "libcurand", "libnccl", "libnvshmem",
                                       "libcudart", "libcupti", "libcuda.so"};
  Dl_info info;
  if (!dladdr(caller, &info) || !info.dli_fname) return 0;
  const char *slash = strrchr(info.dli_fname, '/'), *file = slash ? slash + 1 : info.dli_fname;
  for (size_t i = 0; i < sizeof owners / sizeof *owners; i++)
    if (!strncmp(file, owners[i], strlen(owners[i]))) return 1;
  return 0;
}

static void loading(const void *image, const void *caller) {
  if (!image || of_torch(caller)) return;
  uint64_t digest = mkb_digest(image), bytes;
  int known = 0;
  lock();
  for (size_t i = 0; i < allowed_count && !known; i++) known = allowed[i] == digest;
  unlock();
  if (known) return;
  char text[NOTE_BYTES];
  measure(image, &bytes);
  snprintf(text, sizeof text, "a module of %llu bytes that the DSL's compiler did not produce", (unsigned long long)bytes);
  note("raw-cuda", text);
}

static void loading_file(const void *caller) {
  if (!of_torch(caller)) note("raw-cuda", "a module was loaded from a file");
}

#define CALLER __builtin_return_address(0)
// All of them begin with (handle out, image or path); the longest has eight arguments.
#define MODULE(name, find, see)                                                                          \
  int name(void *out, const void *what, void *a, void *b, uint64_t c, void *d, void *e, uint64_t f) {    \
    static int (*real)(void *, const void *, void *, void *, uint64_t, void *, void *, uint64_t);        \
    if (!real) real = find(#name);                                                                       \
    see;                                                                                                 \
    return real ? real(out, what, a, b, c, d, e, f) : missing(#name);                                    \
  }

MODULE(cuLibraryLoadData, next, loading(what, CALLER))
MODULE(cuLibraryLoadFromFile, next, loading_file(CALLER))
MODULE(_cudaLibraryLoadData, runtime, loading(what, CALLER))
MODULE(_cuLibraryLoadData, runtime, loading(what, CALLER))
MODULE(_cudaLibraryLoadFromFile, runtime, loading_file(CALLER))
MODULE(_cuLibraryLoadFromFile, runtime, loading_file(CALLER))

int cuModuleLoadData(void **module, const void *image) {
  static int (*real)(void **, const void *);
  if (!real) real = next("cuModuleLoadData");
  loading(image, CALLER);
  return real ? real(module, image) : missing("cuModuleLoadData");
}

int cuModuleLoadFatBinary(void **module, const void *image) {
  static int (*real)(void **, const void *);
  if (!real) real = next("cuModuleLoadFatBinary");
  loading(image, CALLER);
  return real ? real(module, image) : missing("cuModuleLoadFatBinary");
}

int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void **values) {
  static int (*real)(void **, const void *, unsigned, void *, void **);
  if (!real) real = next("cuModuleLoadDataEx");
  loading(image, CALLER);
  return real ? real(module, image, count, options, values) : missing("cuModuleLoadDataEx");
}

int cuModuleLoad(void **module, const char *path) {
  static int (*real)(void **, const char *);
  if (!real) real = next("cuModuleLoad");
  loading_file(CALLER);
  return real ? real(module, path) : missing("cuModuleLoad");
}
