/* The mosaic's pixel kernels for OpenCL and CUDA (see the runtime's prelude): the NumPy variants' arithmetic, operation
 * by operation, coordinates and sums in double, values in float. Neighbouring work items take neighbouring pixels. */

#define RUN 32    /* rows that one work item sums */
#define LANES 128 /* columns that one work group sums at once */
#define SUMS 9
#define MAX_WEIGHT 255.0

DEVICE double least(double a, double b) { return a < b ? a : b; }

DEVICE double within(double a, double last) { return a < 0.0 ? 0.0 : a > last ? last : a; }

KERNEL reproject(GLOBAL const float *pixels, GLOBAL float *area, GLOBAL uchar *weight, int rows, int columns,
                 int area_rows, int area_columns, double h0, double h1, double h2, double h3, double h4, double h5,
                 double h6, double h7, double h8)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= area_rows || j >= area_columns) return;
    double x = j, y = i, last_x = columns - 1, last_y = rows - 1;
    double w = (h6 * x + h7 * y) + h8;
    double sx = ((h0 * x + h1 * y) + h2) / w, sy = ((h3 * x + h4 * y) + h5) / w;
    double distance = least(least(sx, last_x - sx), least(sy, last_y - sy)) + 0.5;
    float value = 0.0f;
    double found = 0.0;
    if (w > 0.0 && distance > 0.0) {
        double cx = within(sx, last_x), cy = within(sy, last_y);
        int x0 = (int)cx, y0 = (int)cy;
        if (x0 > columns - 2) x0 = columns - 2;
        if (y0 > rows - 2) y0 = rows - 2;
        float fx = (float)(cx - x0), fy = (float)(cy - y0);
        float gx = 1.0f - fx, gy = 1.0f - fy;
        GLOBAL const float *at = pixels + (long)y0 * columns + x0;
        float below = at[0] * gx + at[1] * fx;
        float above = at[columns] * gx + at[columns + 1] * fx;
        value = below * gy + above * fy;
        if (isfinite(value))
            found = least(ceil(distance), MAX_WEIGHT);
        else
            value = 0.0f;
    }
    long here = (long)i * area_columns + j;
    area[here] = value;
    weight[here] = (uchar)found;
}

/* Sums of a run of rows in one column: 1, y, y*y, d, y*d; parts holds them as [sum][run][column]. */
KERNEL fit_runs(GLOBAL const float *first, GLOBAL const uchar *first_weight, GLOBAL const float *second,
                GLOBAL const uchar *second_weight, GLOBAL double *parts, int rows, int columns, int runs, int first_top,
                int first_left, int first_columns, int second_top, int second_left, int second_columns)
{
    int j = GLOBAL_ID(0), run = GLOBAL_ID(1);
    if (j >= columns || run >= runs) return;
    double n = 0.0, sum_y = 0.0, sum_yy = 0.0, sum_d = 0.0, sum_yd = 0.0;
    int end = (run + 1) * RUN < rows ? (run + 1) * RUN : rows;
    for (int i = run * RUN; i < end; i++) {
        long a = (long)(first_top + i) * first_columns + first_left + j;
        long b = (long)(second_top + i) * second_columns + second_left + j;
        if (first_weight[a] > 0 && second_weight[b] > 0) {
            double y = i - rows / 2, d = (double)first[a] - (double)second[b];
            n += 1.0;
            sum_y += y;
            sum_yy += y * y;
            sum_d += d;
            sum_yd += y * d;
        }
    }
    long step = (long)runs * columns, here = (long)run * columns + j;
    parts[here] = n;
    parts[here + step] = sum_y;
    parts[here + 2 * step] = sum_yy;
    parts[here + 3 * step] = sum_d;
    parts[here + 4 * step] = sum_yd;
}

/* One work group: lane l adds columns l, l + LANES, ...; then the lanes are halved. */
KERNEL fit_columns(GLOBAL const double *parts, GLOBAL double *sums, int columns, int runs)
{
    LOCAL double lanes[SUMS * LANES];
    int lane = LOCAL_ID(0);
    double own[SUMS];
    for (int k = 0; k < SUMS; k++) own[k] = 0.0;
    long step = (long)runs * columns;
    for (int j = lane; j < columns; j += LANES) {
        double c[5];
        for (int k = 0; k < 5; k++) {
            c[k] = 0.0;
            for (int run = 0; run < runs; run++) c[k] += parts[k * step + (long)run * columns + j];
        }
        double x = j - columns / 2;
        own[0] += c[0];
        own[1] += x * c[0];
        own[2] += c[1];
        own[3] += (x * x) * c[0];
        own[4] += x * c[1];
        own[5] += c[2];
        own[6] += c[3];
        own[7] += x * c[3];
        own[8] += c[4];
    }
    for (int k = 0; k < SUMS; k++) lanes[k * LANES + lane] = own[k];
    for (int other = LANES / 2; other > 0; other /= 2) {
        BARRIER();
        if (lane < other)
            for (int k = 0; k < SUMS; k++) lanes[k * LANES + lane] += lanes[k * LANES + lane + other];
    }
    BARRIER();
    if (lane < SUMS) sums[lane] = lanes[lane * LANES];
}

KERNEL correct(GLOBAL const float *area, GLOBAL const uchar *weight, GLOBAL const double *planes, GLOBAL float *piece,
               GLOBAL uchar *piece_weight, int index, int area_columns, int top, int left, int rows, int columns,
               int first_row, int first_column)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    GLOBAL const double *plane = planes + 3 * index;
    double x = first_column + j, y = first_row + i;
    long from = (long)(top + i) * area_columns + left + j, to = (long)i * columns + j;
    uchar found = weight[from];
    double level = (double)area[from] - ((plane[0] + plane[1] * x) + plane[2] * y);
    piece[to] = found > 0 ? (float)level : 0.0f;
    piece_weight[to] = found;
}

/* A piece: values, weights, its first row and column in the tile and its extent, each as rows << 16 | columns. */
#define PIECE(k) GLOBAL const float *value##k, GLOBAL const uchar *weight##k, uint at##k, uint extent##k
#define ADD(k)                                                                                   \
    if (i - (int)(at##k >> 16) >= 0 && j - (int)(at##k & 65535u) >= 0 &&                          \
        i - (int)(at##k >> 16) < (int)(extent##k >> 16) && j - (int)(at##k & 65535u) < (int)(extent##k & 65535u)) { \
        long p = (long)(i - (int)(at##k >> 16)) * (int)(extent##k & 65535u) + (j - (int)(at##k & 65535u)); \
        double w = weight##k[p];                                                                 \
        total += (double)value##k[p] * w;                                                        \
        weights += w;                                                                            \
    }

/* Adds up to eight pieces; a longer list takes several launches, which hand their sums on in `sums`. */
KERNEL coadd(GLOBAL float *tile, GLOBAL uchar *covered, GLOBAL double *sums, int rows, int columns, int first, int last,
             PIECE(0), PIECE(1), PIECE(2), PIECE(3), PIECE(4), PIECE(5), PIECE(6), PIECE(7))
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    long here = (long)i * columns + j, count = (long)rows * columns;
    double total = first ? 0.0 : sums[here], weights = first ? 0.0 : sums[count + here];
    ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7)
    if (last) {
        tile[here] = weights > 0.0 ? (float)(total / weights) : 0.0f;
        covered[here] = weights > 0.0 ? 1 : 0;
    } else {
        sums[here] = total;
        sums[count + here] = weights;
    }
}

KERNEL shrink(GLOBAL const float *tile, GLOBAL const uchar *covered, GLOBAL float *small, GLOBAL uchar *small_covered,
              int rows, int columns, int factor, int small_rows, int small_columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= small_rows || j >= small_columns) return;
    double total = 0.0;
    int count = 0;
    for (int y = i * factor; y < (i + 1) * factor && y < rows; y++)
        for (int x = j * factor; x < (j + 1) * factor && x < columns; x++) {
            long p = (long)y * columns + x;
            if (covered[p] > 0) {
                total += (double)tile[p];
                count++;
            }
        }
    long here = (long)i * small_columns + j;
    small[here] = count > 0 ? (float)(total / (double)count) : 0.0f;
    small_covered[here] = count > 0 ? 1 : 0;
}
