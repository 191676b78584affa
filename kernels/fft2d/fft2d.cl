/* Rows of a 2-D FFT for OpenCL and CUDA (see the runtime's prelude). Complex numbers are pairs of floats; scratch holds
 * two bands of `rows` x `columns` of them, between which the Stockham stages (radix 2, self-sorting) go to and fro. */

KERNEL from_real(GLOBAL const float *field, GLOBAL float *band, int rows, int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    long here = (long)i * columns + j;
    band[2 * here] = field[here];
    band[2 * here + 1] = 0.0f;
}

/* Copy `rows` x `columns` complex numbers between arrays whose rows have the given lengths. */
KERNEL copy_complex(GLOBAL const float *source, int source_length, int source_at, GLOBAL float *target,
                    int target_length, int target_at, int rows, int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    long from = 2 * (source_at + (long)i * source_length + j), to = 2 * (target_at + (long)i * target_length + j);
    target[to] = source[from];
    target[to + 1] = source[from + 1];
}

/* One stage: butterflies over `stride` interleaved transforms of length `length` = columns / stride. */
KERNEL stage(GLOBAL float *bands, int from_second, int rows, int columns, int stride)
{
    int item = GLOBAL_ID(0), i = GLOBAL_ID(1), middle = columns / 2;
    if (i >= rows || item >= middle) return;
    long size = 2L * rows * columns, row = 2L * i * columns;
    GLOBAL const float *source = bands + (from_second ? size : 0) + row;
    GLOBAL float *target = bands + (from_second ? 0 : size) + row;
    int length = columns / stride, p = item / stride, q = item % stride;
    float angle = -2.0f * (float)p / (float)length;
    float c = COSPI(angle), s = SINPI(angle);
    int a = 2 * (q + stride * p), b = a + 2 * middle, t = 2 * (q + stride * 2 * p);
    float re = source[a], im = source[a + 1], other_re = source[b], other_im = source[b + 1];
    float dr = re - other_re, di = im - other_im;
    target[t] = re + other_re;
    target[t + 1] = im + other_im;
    target[t + 2 * stride] = dr * c - di * s;
    target[t + 2 * stride + 1] = dr * s + di * c;
}

#define TILE 16

/* out = in^T through local memory, so that both sides are read and written along rows. */
KERNEL transpose(GLOBAL const float *in, GLOBAL float *out, int rows, int columns)
{
    LOCAL float re[TILE][TILE + 1];
    LOCAL float im[TILE][TILE + 1];
    int x = LOCAL_ID(0), y = LOCAL_ID(1), j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i < rows && j < columns) {
        long here = 2 * ((long)i * columns + j);
        re[y][x] = in[here];
        im[y][x] = in[here + 1];
    }
    BARRIER();
    int k = GROUP_ID(0) * TILE + y, m = GROUP_ID(1) * TILE + x;
    if (k < columns && m < rows) {
        long there = 2 * ((long)k * rows + m);
        out[there] = re[x][y];
        out[there + 1] = im[x][y];
    }
}
