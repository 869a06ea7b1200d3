/* Stands in for the CUDA symbols of CuTe DSL's runtime library (libcute_dsl_runtime.so, version 4.8.1): modules are
 * given a number, launches go to a callback. The DSL finds it through the environment variable CUTE_DSL_LIBS. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t i32;
typedef struct { i32 id; i32 pad; union { char bytes[64]; struct { uint32_t x, y, z; } dim; } value; } attribute;
typedef struct { uint32_t grid[3], block[3]; size_t shared; void *stream; attribute *attributes; uint32_t count; } config;
typedef struct { intptr_t module; char name[]; } kernel;
typedef intptr_t (*load_fn)(const void *image);
typedef i32 (*launch_fn)(intptr_t module, const char *name, const uint32_t *grid, const uint32_t *block,
                         uint64_t shared, uint32_t cluster, void **args);

enum { NOT_READY = 999, INVALID = 1, MAX_SHARED_OPTIN = 232448, CLUSTER_DIMENSION = 4 };
static load_fn on_load;
static launch_fn on_launch;

void mkb_set_callbacks(load_fn load, launch_fn launch) { on_load = load; on_launch = launch; }

i32 _cudaLibraryLoadData(void **library, const void *image, void *a, void *b, i32 n, void *c, void *d, i32 m) {
    if (!on_load) return NOT_READY;
    *library = (void *)on_load(image);
    return *library ? 0 : INVALID;
}
i32 _cudaLibraryUnload(void *library) { return 0; }
i32 _cudaLibraryGetKernel(void **out, void *library, const char *name) {
    kernel *k = malloc(sizeof *k + strlen(name) + 1);
    if (!k) return 2;
    k->module = (intptr_t)library;
    strcpy(k->name, name);
    *out = k;
    return 0;
}
static i32 go(const kernel *k, const uint32_t *grid, const uint32_t *block, uint64_t shared, uint32_t cluster, void **args) {
    return on_launch ? on_launch(k->module, k->name, grid, block, shared, cluster, args) : NOT_READY;
}
i32 _cudaLaunchKernelEx(const config *c, void *k, void **args) {
    uint32_t cluster = 1;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->attributes[i].id == CLUSTER_DIMENSION)
            cluster = c->attributes[i].value.dim.x * c->attributes[i].value.dim.y * c->attributes[i].value.dim.z;
    return go(k, c->grid, c->block, c->shared, cluster, args);
}
i32 _cudaLaunchKernel(void *k, i32 gx, i32 gy, i32 gz, i32 bx, i32 by, i32 bz, void *args, int64_t shared, void *stream) {
    uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return go(k, grid, block, shared, 1, args);
}

i32 _cuKernelGetAttribute(i32 *value, i32 attribute, void *k, i32 device) { *value = 0; return 0; }
i32 _cudaDeviceGetAttribute(i32 *value, i32 attribute, i32 device) { *value = MAX_SHARED_OPTIN; return 0; }
i32 _cudaGetDevice(i32 *device) { *device = 0; return 0; }
i32 _cudaSetDevice(i32 device) { return 0; }
i32 _cudaGetDeviceCount(i32 *count) { *count = 1; return 0; }
i32 _cudaDeviceSynchronize(void) { return 0; }
i32 _cudaKernelSetAttributeForDevice(void *k, i32 attribute, i32 value, i32 device) { return 0; }
i32 _cudaFuncSetAttribute(void *k, i32 attribute, i32 value) { return 0; }
i32 _cudaOccupancyMaxActiveBlocksPerMultiprocessor(i32 *blocks, void *k, i32 threads, int64_t shared) { *blocks = 1; return 0; }

/* A kernel with tensor maps is refused at its launch, which names the instruction. */
i32 _cuTensorMapEncodeTiled(void) { return 0; }

/* A tvm-ffi function runs its own module's init and load once. */
i32 cuda_dialect_init_library_once(int64_t *state, i32 (*init)(void *), i32 (*load)(void *, i32), void *set_error) {
    static void *library;
    if (*state) return 0;
    i32 error = init(&library);
    if (!error) error = load(&library, 0);
    if (!error) *state = 1;
    return error;
}
void cuda_dialect_unload_library_once(void *state) {}
