/* CPU functions in C: input out of an array in memory, output as .npy files, BLAS and LAPACK by address.
 *
 * BLAS is the library that SciPy brings, as in our CPU variants; its functions' addresses are handed in.
 */

#include "layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Write files: numbers[0] of them, each {path, header, header bytes, rows, arrays, row bytes of each array}; the arrays
 * stand side by side. */
void native_store(void **arrays, const int64_t *numbers, const double *reals)
{
    (void)reals;
    const int64_t *file = numbers + 1;
    for (int64_t k = 0; k < numbers[0]; k++) {
        int64_t rows = file[3], n = file[4], width = 0, at = 0;
        const int64_t *row_bytes = file + 5;
        for (int64_t i = 0; i < n; i++) width += row_bytes[i];
        char *whole = n == 1 ? arrays[0] : malloc((size_t)(rows * width > 0 ? rows * width : 1));
        for (int64_t i = 0; n > 1 && i < n; i++) {
            for (int64_t row = 0; row < rows; row++)
                memcpy(whole + row * width + at, (const char *)arrays[i] + row * row_bytes[i], (size_t)row_bytes[i]);
            at += row_bytes[i];
        }
        FILE *stream = fopen((const char *)file[0], "wb");
        size_t bytes = (size_t)(rows * width);
        if (!stream || fwrite((const char *)file[1], 1, (size_t)file[2], stream) != (size_t)file[2] ||
            fwrite(whole, 1, bytes, stream) != bytes || fclose(stream) != 0) {
            perror((const char *)file[0]);
            abort();
        }
        if (n > 1) free(whole);
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
