/* Tiled Cholesky for OpenCL and CUDA (see the runtime's prelude). REAL is float or double, defined by the variant.
 * All matrices are row-major; `x_at` is the flat index of a block's first element, `ldx` the length of a row. */

#define BLOCK 64 /* rows and columns of C that a work group of SIDE x SIDE items computes */
#define SIDE 16
#define EACH 4
#define PANEL 32 /* columns that the triangular kernels take at once */

/* C[m x n] -= A[m x k] B[n x k]^T; with `lower`, only where row >= column. */
KERNEL gemm(GLOBAL const REAL *a, int lda, int a_at, GLOBAL const REAL *b, int ldb, int b_at, GLOBAL REAL *c, int ldc,
            int c_at, int m, int n, int k, int lower)
{
    LOCAL REAL left[SIDE][BLOCK + 1];
    LOCAL REAL right[SIDE][BLOCK + 1];
    int x = LOCAL_ID(0), y = LOCAL_ID(1), item = y * SIDE + x;
    int row = GROUP_ID(1) * BLOCK, column = GROUP_ID(0) * BLOCK;
    if (lower && column > row) return; /* the whole group leaves, so no barrier is missed */
    REAL sum[EACH][EACH];
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) sum[i][j] = 0;
    for (int start = 0; start < k; start += SIDE) {
        for (int e = item; e < SIDE * BLOCK; e += SIDE * SIDE) {
            int at = e % SIDE, line = e / SIDE;
            int inside = start + at < k;
            left[at][line] =
                inside && row + line < m ? a[a_at + (long)(row + line) * lda + start + at] : (REAL)0;
            right[at][line] =
                inside && column + line < n ? b[b_at + (long)(column + line) * ldb + start + at] : (REAL)0;
        }
        BARRIER();
        for (int at = 0; at < SIDE; at++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += left[at][y + i * SIDE] * right[at][x + j * SIDE];
        BARRIER();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int r = row + y + i * SIDE, s = column + x + j * SIDE;
            if (r < m && s < n && !(lower && s > r)) c[c_at + (long)r * ldc + s] -= sum[i][j];
        }
}

/* Solve X T^T = A in place for `rows` rows of A and a lower triangle T of `count` <= PANEL columns. */
KERNEL solve(GLOBAL const REAL *triangle, int ldt, int t_at, GLOBAL REAL *a, int lda, int a_at, int rows, int count)
{
    LOCAL REAL t[PANEL][PANEL + 1];
    for (int e = LOCAL_ID(0); e < count * count; e += LOCAL_SIZE(0))
        t[e / count][e % count] = triangle[t_at + (long)(e / count) * ldt + e % count];
    BARRIER();
    int row = GLOBAL_ID(0);
    if (row >= rows) return;
    REAL x[PANEL];
    GLOBAL REAL *own = a + a_at + (long)row * lda;
    for (int j = 0; j < count; j++) {
        REAL value = own[j];
        for (int k = 0; k < j; k++) value -= x[k] * t[j][k];
        x[j] = value / t[j][j];
        own[j] = x[j];
    }
}

/* Factorise the diagonal block of `count` <= PANEL columns, by one work group. A pivot that is not positive gives NaN. */
KERNEL factor(GLOBAL REAL *a, int lda, int a_at, int count)
{
    LOCAL REAL t[PANEL][PANEL + 1];
    int i = LOCAL_ID(0);
    if (i < count)
        for (int j = 0; j <= i; j++) t[i][j] = a[a_at + (long)i * lda + j];
    BARRIER();
    for (int j = 0; j < count; j++) {
        if (i == j) t[j][j] = sqrt(t[j][j] > 0 ? t[j][j] : (REAL)-1);
        BARRIER();
        if (i > j && i < count) t[i][j] /= t[j][j];
        BARRIER();
        if (i > j && i < count)
            for (int k = j + 1; k <= i; k++) t[i][k] -= t[i][j] * t[k][j];
        BARRIER();
    }
    if (i < count)
        for (int j = 0; j <= i; j++) a[a_at + (long)i * lda + j] = t[i][j];
}

KERNEL clear_upper(GLOBAL REAL *a, int n)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i < n && j < n && j > i) a[(long)i * n + j] = 0;
}

/* exp(-gamma |x - y|^2), plus jitter on the diagonal, of m left and n right points with `features` coordinates. */
KERNEL gram(GLOBAL const REAL *left, GLOBAL const REAL *right, GLOBAL REAL *tile, int m, int n, int features,
            REAL gamma, REAL jitter)
{
    LOCAL REAL a[SIDE][SIDE + 1];
    LOCAL REAL b[SIDE][SIDE + 1];
    int x = LOCAL_ID(0), y = LOCAL_ID(1), row = GLOBAL_ID(1), column = GLOBAL_ID(0);
    int other = GROUP_ID(0) * SIDE + y;
    REAL sum = 0;
    for (int start = 0; start < features; start += SIDE) {
        int inside = start + x < features;
        a[y][x] = inside && row < m ? left[(long)row * features + start + x] : (REAL)0;
        b[y][x] = inside && other < n ? right[(long)other * features + start + x] : (REAL)0;
        BARRIER();
        for (int at = 0; at < SIDE; at++) {
            REAL difference = a[y][at] - b[x][at];
            sum += difference * difference;
        }
        BARRIER();
    }
    if (row < m && column < n)
        tile[(long)row * n + column] = exp(-gamma * sum) + (row == column ? jitter : (REAL)0);
}
