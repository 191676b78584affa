/* CPU functions in C: input out of an array in memory, output as .npy files, BLAS and LAPACK by address.
 *
 * BLAS is the library that SciPy brings, as in our CPU variants; its functions' addresses are handed in.
 */

#include "layer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Copy blocks of a host array: for each of numbers[0] arrays {address, stride, rows, row bytes}. */
void native_load(void **arrays, const int64_t *numbers, const double *reals)
{
    (void)reals;
    for (int64_t k = 0; k < numbers[0]; k++) {
        const int64_t *block = numbers + 1 + 4 * k;
        const char *source = (const char *)block[0];
        char *target = arrays[k];
        for (int64_t row = 0; row < block[2]; row++)
            memcpy(target + row * block[3], source + row * block[1], (size_t)block[3]);
    }
}

enum { BLOCK_BYTES = 1 << 18 };

static void put(const char *path, int file, const char *bytes, size_t count, off_t at)
{
    while (count > 0) {
        ssize_t written = pwrite(file, bytes, count, at);
        if (written < 0) {
            perror(path);
            abort();
        }
        bytes += written, at += written, count -= (size_t)written;
    }
}

/* Write files: numbers[0] of them, each {path, header, header bytes, rows, arrays, row bytes of each array}; the arrays
 * stand side by side. The calls are those of our variants (kernels/results.py): an older file is overwritten in place,
 * without its header until all else is written, and rows of several arrays are joined in a block that stays in the
 * cache. */
void native_store(void **arrays, const int64_t *numbers, const double *reals)
{
    (void)reals;
    static _Thread_local char *block;
    static _Thread_local size_t block_bytes;
    const int64_t *file = numbers + 1;
    for (int64_t k = 0; k < numbers[0]; k++) {
        const char *path = (const char *)file[0], *header = (const char *)file[1];
        size_t header_bytes = (size_t)file[2];
        int64_t rows = file[3], n = file[4], width = 0;
        const int64_t *row_bytes = file + 5;
        for (int64_t i = 0; i < n; i++) width += row_bytes[i];
        int out = open(path, O_WRONLY | O_CREAT, 0666);
        struct stat before;
        if (out < 0 || fstat(out, &before) != 0) {
            perror(path);
            abort();
        }
        static const char zeros[256];
        if (before.st_size > 0) put(path, out, zeros, header_bytes < sizeof zeros ? header_bytes : sizeof zeros, 0);
        off_t at = (off_t)header_bytes;
        if (rows == 1 || n == 1) {
            for (int64_t i = 0; i < n; i++) {
                put(path, out, arrays[i], (size_t)(rows * row_bytes[i]), at);
                at += rows * row_bytes[i];
            }
        } else {
            int64_t count = width > 0 && BLOCK_BYTES / width > 1 ? BLOCK_BYTES / width : 1;
            if (block_bytes < (size_t)(count * width)) {
                block_bytes = (size_t)(count * width);
                block = realloc(block, block_bytes);
                if (!block) abort();
            }
            for (int64_t first = 0; first < rows; first += count) {
                char *target = block;
                for (int64_t row = first; row < rows && row < first + count; row++)
                    for (int64_t i = 0; i < n; target += row_bytes[i++])
                        memcpy(target, (const char *)arrays[i] + row * row_bytes[i], (size_t)row_bytes[i]);
                put(path, out, block, (size_t)(target - block), at);
                at += target - block;
            }
        }
        if (at < before.st_size && ftruncate(out, at) != 0) {
            perror(path);
            abort();
        }
        put(path, out, header, header_bytes, 0);
        if (close(out) != 0) {
            perror(path);
            abort();
        }
        arrays += n;
        file += 5 + n;
    }
}

typedef void (*address)(void);
static address blas[8]; /* gemm, syrk, trsm, potrf in float and then in double */

void native_blas(int which, address function) { blas[which] = function; }

#define LINEAR_ALGEBRA(REAL, suffix, at)                                                                              \
    void native_gemm_##suffix(void **x, const int64_t *numbers, const double *reals)                                   \
    {                                                                                                                  \
        int m = (int)numbers[0], n = (int)numbers[1], k = (int)numbers[2];                                             \
        REAL minus = -1, one = 1;                                                                                      \
        (void)reals;                                                                                                   \
        ((void (*)(char *, char *, int *, int *, int *, REAL *, REAL *, int *, REAL *, int *, REAL *, REAL *, int *))  \
             blas[at])("T", "N", &n, &m, &k, &minus, x[1], &k, x[0], &k, &one, x[2], &n);                              \
    }                                                                                                                  \
    void native_syrk_##suffix(void **x, const int64_t *numbers, const double *reals)                                   \
    {                                                                                                                  \
        int n = (int)numbers[0], k = (int)numbers[1];                                                                  \
        REAL minus = -1, one = 1;                                                                                      \
        (void)reals;                                                                                                   \
        ((void (*)(char *, char *, int *, int *, REAL *, REAL *, int *, REAL *, REAL *, int *))blas[at + 1])(          \
            "U", "T", &n, &k, &minus, x[0], &k, &one, x[1], &n);                                                       \
    }                                                                                                                  \
    void native_trsm_##suffix(void **x, const int64_t *numbers, const double *reals)                                   \
    {                                                                                                                  \
        int m = (int)numbers[0], n = (int)numbers[1];                                                                  \
        REAL one = 1;                                                                                                  \
        (void)reals;                                                                                                   \
        ((void (*)(char *, char *, char *, char *, int *, int *, REAL *, REAL *, int *, REAL *, int *))blas[at + 2])(  \
            "L", "U", "T", "N", &n, &m, &one, x[0], &n, x[1], &n);                                                     \
    }                                                                                                                  \
    void native_potrf_##suffix(void **x, const int64_t *numbers, const double *reals)                                  \
    {                                                                                                                  \
        int n = (int)numbers[0], info = 0;                                                                             \
        REAL *a = x[0];                                                                                                \
        (void)reals;                                                                                                   \
        ((void (*)(char *, int *, REAL *, int *, int *))blas[at + 3])("U", &n, a, &n, &info);                          \
        for (int i = 0; i < n; i++) memset(a + (size_t)i * n + i + 1, 0, (size_t)(n - i - 1) * sizeof *a);             \
    }

LINEAR_ALGEBRA(float, float32, 0)
LINEAR_ALGEBRA(double, float64, 4)
