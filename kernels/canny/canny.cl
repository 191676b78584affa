/* Canny for OpenCL and CUDA (see the runtime's prelude). The arithmetic is the NumPy variants', operation by
 * operation, in float, with correctly rounded quotients and square roots whatever the compiler's options are.
 * Dimension 0 runs along the rows, so neighbouring work items touch neighbouring addresses. */

#ifdef __OPENCL_VERSION__
#if defined(cl_khr_fp64) && !defined(WITHOUT_DOUBLE)
/* Through double: with 53 bits, rounding twice is rounding once. */
DEVICE float divide(float a, float b) { return (float)((double)a / (double)b); }
DEVICE float root_of(float a) { return (float)sqrt((double)a); }
#else
/* Without double: in integers, for normal numbers. */
DEVICE float divide(float a, float b)
{
    if (a == 0.0f || b == 0.0f || isnan(a) || isnan(b) || isinf(a) || isinf(b)) return a / b;
    int p, q;
    long m = (long)(frexp(fabs(a), &p) * 16777216.0f), n = (long)(frexp(fabs(b), &q) * 16777216.0f);
    int exponent = p - q;
    if (m >= n) exponent++;
    else m <<= 1;
    /* m / n lies in [1, 2): 24 bits of the quotient, one to round by, and whether anything is left. */
    long quotient = (m << 24) / n, rest = (m << 24) - quotient * n;
    long result = quotient >> 1;
    if ((quotient & 1) && (rest != 0 || (result & 1))) result++;
    float value = ldexp((float)result, exponent - 24);
    return (a < 0.0f) != (b < 0.0f) ? -value : value;
}
DEVICE float root_of(float a)
{
    if (!(a > 0.0f) || isinf(a)) return sqrt(a);
    int exponent;
    long m = (long)(frexp(a, &exponent) * 16777216.0f) << 24;
    if (exponent & 1) { m <<= 1; exponent--; }
    /* m in [2^47, 2^49): the root has 24 or 25 bits; put the estimate right. */
    long root = (long)sqrt((float)m);
    while (root * root > m) root--;
    while ((root + 1) * (root + 1) <= m) root++;
    long result = root;
    int shift = exponent / 2 - 24;
    if (root >= 16777216) {
        result = root >> 1;
        if ((root & 1) && (m != root * root || (result & 1))) result++;
        shift++;
    } else if (m - root * root > root) {
        result++;
    }
    return ldexp((float)result, shift);
}
#endif
#else /* CUDA */
DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root_of(float a) { return __fsqrt_rn(a); }
#endif

#define NORTH 1
#define SOUTH 2
#define WEST 4
#define EAST 8
#define NORTH_WEST 16
#define NORTH_EAST 32
#define SOUTH_WEST 64
#define SOUTH_EAST 128

/* A tile and its neighbours' strips. A strip is `depth` deep; those below have `below` rows and those on the right
 * `right` columns, fewer at the image's border. A side that is not in `sides` has no strip. */
#define AROUND                                                                                                        \
    GLOBAL const float *n, GLOBAL const float *s, GLOBAL const float *w, GLOBAL const float *e, GLOBAL const float *nw, \
        GLOBAL const float *ne, GLOBAL const float *sw, GLOBAL const float *se, int sides, int depth, int below, int right
#define STRIPS                                                                                                  \
    GLOBAL float *to_n, GLOBAL float *to_s, GLOBAL float *to_w, GLOBAL float *to_e, GLOBAL float *to_nw,        \
        GLOBAL float *to_ne, GLOBAL float *to_sw, GLOBAL float *to_se
#define OF_AROUND n, s, w, e, nw, ne, sw, se, sides, depth, below, right
#define OF_STRIPS to_n, to_s, to_w, to_e, to_nw, to_ne, to_sw, to_se

/* The pixel at (i, j), which may lie up to `depth` outside the tile; 0 beyond the image. */
DEVICE float outside(AROUND, int rows, int columns, int i, int j)
{
    if (i < 0) {
        i += depth;
        if (j < 0) return sides & NORTH_WEST ? nw[i * depth + j + depth] : 0.0f;
        if (j < columns) return sides & NORTH ? n[i * columns + j] : 0.0f;
        return (sides & NORTH_EAST) && j - columns < right ? ne[i * right + j - columns] : 0.0f;
    }
    if (i < rows) {
        if (j < 0) return sides & WEST ? w[i * depth + j + depth] : 0.0f;
        return (sides & EAST) && j - columns < right ? e[i * right + j - columns] : 0.0f;
    }
    i -= rows;
    if (i >= below) return 0.0f;
    if (j < 0) return sides & SOUTH_WEST ? sw[i * depth + j + depth] : 0.0f;
    if (j < columns) return sides & SOUTH ? s[i * columns + j] : 0.0f;
    return (sides & SOUTH_EAST) && j - columns < right ? se[i * right + j - columns] : 0.0f;
}

DEVICE float pixel(GLOBAL const float *tile, AROUND, int rows, int columns, int i, int j)
{
    if (i >= 0 && i < rows && j >= 0 && j < columns) return tile[i * columns + j];
    return outside(OF_AROUND, rows, columns, i, j);
}

/* Give a border pixel to the neighbours' strips, which are one pixel deep. */
DEVICE void hand_out(STRIPS, int give, int rows, int columns, int i, int j, float value)
{
    if (i == 0) {
        if (give & NORTH) to_n[j] = value;
        if ((give & NORTH_WEST) && j == 0) to_nw[0] = value;
        if ((give & NORTH_EAST) && j == columns - 1) to_ne[0] = value;
    }
    if (i == rows - 1) {
        if (give & SOUTH) to_s[j] = value;
        if ((give & SOUTH_WEST) && j == 0) to_sw[0] = value;
        if ((give & SOUTH_EAST) && j == columns - 1) to_se[0] = value;
    }
    if ((give & WEST) && j == 0) to_w[i] = value;
    if ((give & EAST) && j == columns - 1) to_e[i] = value;
}

KERNEL place_float(GLOBAL float *target, int index, float value)
{
    if (GLOBAL_ID(0) == 0) target[index] = value;
}

/* What a blurred line of ones is where zeros surround it. */
KERNEL blur_ones(GLOBAL const float *taps, GLOBAL float *mask, int extent, int radius)
{
    int i = GLOBAL_ID(0);
    if (i >= extent) return;
    float total = taps[0];
    for (int k = radius; k > 0; k--) total += (float)((i >= k) + (i + k < extent)) * taps[k];
    mask[i] = total;
}

/* Columns of the tile and `depth` more on both sides, blurred vertically. */
KERNEL blur_down(GLOBAL const float *tile, AROUND, GLOBAL const float *taps, GLOBAL float *lines, int rows, int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1), width = columns + 2 * depth;
    if (i >= rows || j >= width) return;
    float total;
    if (i >= depth && i + depth < rows && j >= depth && j < columns + depth) {
        GLOBAL const float *here = tile + i * columns + j - depth;
        total = here[0] * taps[0];
        for (int k = depth; k > 0; k--) total += (here[-k * columns] + here[k * columns]) * taps[k];
    } else {
        total = pixel(tile, OF_AROUND, rows, columns, i, j - depth) * taps[0];
        for (int k = depth; k > 0; k--) {
            float a = pixel(tile, OF_AROUND, rows, columns, i - k, j - depth);
            total += (a + pixel(tile, OF_AROUND, rows, columns, i + k, j - depth)) * taps[k];
        }
    }
    lines[i * width + j] = total;
}

KERNEL blur_across(GLOBAL const float *lines, GLOBAL const float *taps, GLOBAL const float *row_mask,
                   GLOBAL const float *column_mask, GLOBAL float *blurred, STRIPS, int give, int rows, int columns,
                   int depth, int row, int column, float eps)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    GLOBAL const float *here = lines + i * (columns + 2 * depth) + j + depth;
    float total = here[0] * taps[0];
    for (int k = depth; k > 0; k--) total += (here[-k] + here[k]) * taps[k];
    float value = divide(total, row_mask[row + i] * column_mask[column + j] + eps);
    blurred[i * columns + j] = value;
    hand_out(OF_STRIPS, give, rows, columns, i, j, value);
}

/* Pixels repeat beyond the image. */
DEVICE void gradient_at(GLOBAL const float *tile, AROUND, GLOBAL float *down, GLOBAL float *across,
                        GLOBAL float *magnitude, STRIPS, int rows, int columns, int i, int j)
{
    float nw_, n_, ne_, w_, e_, sw_, s_, se_;
    int here = i * columns + j;
    if (i > 0 && i + 1 < rows && j > 0 && j + 1 < columns) {
        GLOBAL const float *p = tile + here;
        nw_ = p[-columns - 1], n_ = p[-columns], ne_ = p[-columns + 1];
        w_ = p[-1], e_ = p[1];
        sw_ = p[columns - 1], s_ = p[columns], se_ = p[columns + 1];
    } else {
        int a = max(i - 1, sides & NORTH ? -1 : 0), c = min(i + 1, sides & SOUTH ? rows : rows - 1);
        int l = max(j - 1, sides & WEST ? -1 : 0), r = min(j + 1, sides & EAST ? columns : columns - 1);
        nw_ = pixel(tile, OF_AROUND, rows, columns, a, l), n_ = pixel(tile, OF_AROUND, rows, columns, a, j);
        ne_ = pixel(tile, OF_AROUND, rows, columns, a, r), w_ = pixel(tile, OF_AROUND, rows, columns, i, l);
        e_ = pixel(tile, OF_AROUND, rows, columns, i, r), sw_ = pixel(tile, OF_AROUND, rows, columns, c, l);
        s_ = pixel(tile, OF_AROUND, rows, columns, c, j), se_ = pixel(tile, OF_AROUND, rows, columns, c, r);
    }
    float y = (s_ - n_) * 2.0f + ((sw_ - nw_) + (se_ - ne_));
    float x = (e_ - w_) * 2.0f + ((ne_ - nw_) + (se_ - sw_));
    float length = root_of(y * y + x * x);
    down[here] = y;
    across[here] = x;
    magnitude[here] = length;
    hand_out(OF_STRIPS, sides, rows, columns, i, j, length);
}

KERNEL gradient(GLOBAL const float *tile, AROUND, GLOBAL float *down, GLOBAL float *across, GLOBAL float *magnitude,
                STRIPS, int rows, int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i < rows && j < columns)
        gradient_at(tile, OF_AROUND, down, across, magnitude, OF_STRIPS, rows, columns, i, j);
}

DEVICE void thin_out_at(GLOBAL const float *tile, AROUND, GLOBAL const float *down, GLOBAL const float *across,
                        GLOBAL float *thin, int rows, int columns, int i, int j)
{
    int here = i * columns + j;
    float m = tile[here], result = 0.0f;
    int inside = i > 0 && i + 1 < rows && j > 0 && j + 1 < columns;
    int valid = (i > 0 || (sides & NORTH)) && (i + 1 < rows || (sides & SOUTH)) && (j > 0 || (sides & WEST)) &&
                (j + 1 < columns || (sides & EAST));
    if (m > 0.0f && valid) {
        float y = down[here], x = across[here], ay = fabs(y), ax = fabs(x);
        int same = (y >= 0.0f && x >= 0.0f) || (y <= 0.0f && x <= 0.0f);
        int steep = same ? ay > ax : ay >= ax;
        float weight = steep ? divide(ax, ay) : divide(ay, ax), rest = 1.0f - weight;
        int step = same ? 1 : -1, di = steep ? step : 0, dj = steep ? 0 : 1;
        float diagonal, straight, counter, opposite;
        if (inside) {
            diagonal = tile[here + step * columns + 1], straight = tile[here + di * columns + dj];
            counter = tile[here - step * columns - 1], opposite = tile[here - di * columns - dj];
        } else {
            diagonal = pixel(tile, OF_AROUND, rows, columns, i + step, j + 1);
            straight = pixel(tile, OF_AROUND, rows, columns, i + di, j + dj);
            counter = pixel(tile, OF_AROUND, rows, columns, i - step, j - 1);
            opposite = pixel(tile, OF_AROUND, rows, columns, i - di, j - dj);
        }
        if (diagonal * weight + straight * rest <= m && counter * weight + opposite * rest <= m) result = m;
    }
    thin[here] = result;
}

KERNEL thin_out(GLOBAL const float *tile, AROUND, GLOBAL const float *down, GLOBAL const float *across,
                GLOBAL float *thin, int rows, int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i < rows && j < columns) thin_out_at(tile, OF_AROUND, down, across, thin, rows, columns, i, j);
}

/* For devices that compute runs of pixels with vector instructions (CPUs): a work item takes RUN neighbouring pixels of a
 * row, in inner loops without branches. The arithmetic is that of the kernels above. */
#define RUN 64

/* The part of row i of the padded tile that lies left of the tile (zone -1), in it or right of it; 0 beyond the image. */
DEVICE GLOBAL const float *row_in_zone(GLOBAL const float *tile, AROUND, int rows, int columns, int i, int zone)
{
    int up = i < 0, low = i >= rows, row = up ? i + depth : low ? i - rows : i;
    if (low && row >= below) return 0;
    if (zone < 0) {
        GLOBAL const float *from = up ? nw : low ? sw : w;
        return sides & (up ? NORTH_WEST : low ? SOUTH_WEST : WEST) ? from + row * depth : 0;
    }
    if (zone > 0) {
        GLOBAL const float *from = up ? ne : low ? se : e;
        return sides & (up ? NORTH_EAST : low ? SOUTH_EAST : EAST) ? from + row * right : 0;
    }
    if (!up && !low) return tile + row * columns;
    return sides & (up ? NORTH : SOUTH) ? (up ? n : s) + row * columns : 0;
}

/* Run 0 lies left of the tile, the last one right of it. */
KERNEL blur_down_runs(GLOBAL const float *tile, AROUND, GLOBAL const float *taps, GLOBAL float *lines, int rows,
                      int columns)
{
    int run = GLOBAL_ID(0), i = GLOBAL_ID(1), inside = (columns + RUN - 1) / RUN;
    int beside = (depth + RUN - 1) / RUN;
    if (i >= rows || run >= inside + 2 * beside) return;
    int zone = run < beside ? -1 : run < beside + inside ? 0 : 1;
    int first = RUN * (zone < 0 ? run : zone == 0 ? run - beside : run - beside - inside);
    int extent = zone == 0 ? columns : depth, known = zone > 0 ? min(right, depth) : extent;
    int count = min(RUN, extent - first), filled = max(0, min(count, known - first));
    GLOBAL float *out = lines + i * (columns + 2 * depth) + (zone < 0 ? 0 : zone == 0 ? depth : depth + columns) + first;
    float total[RUN];
    GLOBAL const float *p = row_in_zone(tile, OF_AROUND, rows, columns, i, zone);
    for (int v = 0; v < RUN; v++) total[v] = 0.0f;
    if (p)
        for (int v = 0; v < filled; v++) total[v] = p[first + v] * taps[0];
    for (int k = depth; k > 0; k--) {
        float tap = taps[k];
        GLOBAL const float *a = row_in_zone(tile, OF_AROUND, rows, columns, i - k, zone);
        GLOBAL const float *b = row_in_zone(tile, OF_AROUND, rows, columns, i + k, zone);
        if (a && b)
            for (int v = 0; v < filled; v++) total[v] += (a[first + v] + b[first + v]) * tap;
        else if (a || b) {
            if (!a) a = b;
            for (int v = 0; v < filled; v++) total[v] += a[first + v] * tap;
        }
    }
    for (int v = 0; v < count; v++) out[v] = total[v];
}

KERNEL blur_across_runs(GLOBAL const float *lines, GLOBAL const float *taps, GLOBAL const float *row_mask,
                        GLOBAL const float *column_mask, GLOBAL float *blurred, STRIPS, int give, int rows,
                        int columns, int depth, int row, int column, float eps)
{
    int first = GLOBAL_ID(0) * RUN, i = GLOBAL_ID(1);
    if (i >= rows || first >= columns) return;
    int count = min(RUN, columns - first);
    GLOBAL const float *here = lines + i * (columns + 2 * depth) + first + depth, *mask = column_mask + column + first;
    GLOBAL float *out = blurred + i * columns + first;
    float total[RUN], vertical = row_mask[row + i];
    for (int v = 0; v < count; v++) total[v] = here[v] * taps[0];
    for (int k = depth; k > 0; k--) {
        float tap = taps[k];
        for (int v = 0; v < count; v++) total[v] += (here[v - k] + here[v + k]) * tap;
    }
    for (int v = 0; v < count; v++) total[v] = divide(total[v], vertical * mask[v] + eps);
    for (int v = 0; v < count; v++) out[v] = total[v];
    if (i == 0 || i == rows - 1 || first == 0 || first + count == columns)
        for (int v = 0; v < count; v++) hand_out(OF_STRIPS, give, rows, columns, i, first + v, total[v]);
}

KERNEL gradient_runs(GLOBAL const float *tile, AROUND, GLOBAL float *down, GLOBAL float *across,
                     GLOBAL float *magnitude, STRIPS, int rows, int columns)
{
    int first = GLOBAL_ID(0) * RUN, i = GLOBAL_ID(1);
    if (i >= rows || first >= columns) return;
    int last = min(first + RUN, columns), start = max(first, 1), stop = min(last, columns - 1);
    if (i == 0 || i == rows - 1) start = stop = first;
    for (int j = first; j < (start >= stop ? last : start); j++)
        gradient_at(tile, OF_AROUND, down, across, magnitude, OF_STRIPS, rows, columns, i, j);
    if (start >= stop) return;
    GLOBAL const float *b = tile + i * columns, *a = b - columns, *c = b + columns;
    float ys[RUN], xs[RUN], lengths[RUN];
    int count = stop - start;
    a += start, b += start, c += start;
    for (int v = 0; v < count; v++) {
        float y = (c[v] - a[v]) * 2.0f + ((c[v - 1] - a[v - 1]) + (c[v + 1] - a[v + 1]));
        float x = (b[v + 1] - b[v - 1]) * 2.0f + ((a[v + 1] - a[v - 1]) + (c[v + 1] - c[v - 1]));
        ys[v] = y;
        xs[v] = x;
        lengths[v] = root_of(y * y + x * x);
    }
    int here = i * columns + start;
    for (int v = 0; v < count; v++) down[here + v] = ys[v];
    for (int v = 0; v < count; v++) across[here + v] = xs[v];
    for (int v = 0; v < count; v++) magnitude[here + v] = lengths[v];
    for (int j = stop; j < last; j++)
        gradient_at(tile, OF_AROUND, down, across, magnitude, OF_STRIPS, rows, columns, i, j);
}

KERNEL thin_out_runs(GLOBAL const float *tile, AROUND, GLOBAL const float *down, GLOBAL const float *across,
                     GLOBAL float *thin, int rows, int columns)
{
    int first = GLOBAL_ID(0) * RUN, i = GLOBAL_ID(1);
    if (i >= rows || first >= columns) return;
    int last = min(first + RUN, columns), start = max(first, 1), stop = min(last, columns - 1);
    if (i == 0 || i == rows - 1) start = stop = first;
    for (int j = first; j < (start >= stop ? last : start); j++)
        thin_out_at(tile, OF_AROUND, down, across, thin, rows, columns, i, j);
    if (start >= stop) return;
    int here = i * columns + start, count = stop - start;
    GLOBAL const float *b = tile + here, *a = b - columns, *c = b + columns, *ys = down + here, *xs = across + here;
    float kept[RUN];
    for (int v = 0; v < count; v++) {
        float m = b[v], y = ys[v], x = xs[v], ay = fabs(y), ax = fabs(x);
        float above = a[v], under = c[v], before = b[v - 1], behind = b[v + 1];
        float nw_ = a[v - 1], ne_ = a[v + 1], sw_ = c[v - 1], se_ = c[v + 1];
        int same = ((y >= 0.0f) & (x >= 0.0f)) | ((y <= 0.0f) & (x <= 0.0f));
        int steep = (ay > ax) | ((ay == ax) & !same);
        float longer = steep ? ay : ax, shorter = steep ? ax : ay;
        float weight = divide(shorter, longer), rest = 1.0f - weight;
        float diagonal = same ? se_ : ne_, counter = same ? nw_ : sw_;
        float straight = same ? under : above, opposite = same ? above : under;
        straight = steep ? straight : behind;
        opposite = steep ? opposite : before;
        int keep = (m > 0.0f) & (diagonal * weight + straight * rest <= m) & (counter * weight + opposite * rest <= m);
        kept[v] = keep ? m : 0.0f;
    }
    for (int v = 0; v < count; v++) thin[here + v] = kept[v];
    for (int j = stop; j < last; j++) thin_out_at(tile, OF_AROUND, down, across, thin, rows, columns, i, j);
}

KERNEL grade_pixels(GLOBAL const float *thin, GLOBAL uchar *grade, int count, float low, float high)
{
    int i = GLOBAL_ID(0);
    if (i < count) grade[i] = (uchar)((thin[i] >= low) + (thin[i] >= high));
}

DEVICE int find_root(GLOBAL int *parent, int i)
{
    volatile GLOBAL int *current = parent;
    int next = current[i];
    while (next != i) {
        i = next;
        next = current[i];
    }
    return i;
}

/* Parents only ever fall, so the loop ends; the root of a component is its smallest index. */
DEVICE void unite(GLOBAL int *parent, int a, int b)
{
    for (;;) {
        a = find_root(parent, a);
        b = find_root(parent, b);
        if (a == b) return;
        int high = max(a, b), low = min(a, b);
        int old = ATOMIC_MIN(&parent[high], low);
        if (old == high) return;
        a = old;
        b = low;
    }
}

#define NOWHERE 0x7fffffff
#define STRONG ((int)0x80000000)

/* The flat index of the pixel at a position of the frame: top row, bottom row, left column, right column. */
DEVICE int frame_pixel(int p, int rows, int columns)
{
    if (p < columns) return p;
    if (p < 2 * columns) return (rows - 2) * columns + p;
    if (p < 2 * columns + rows) return (p - 2 * columns) * columns;
    return (p - 2 * columns - rows + 1) * columns - 1;
}

/* `mark` of a root: the component's first position in the frame, and STRONG. */
KERNEL label_start(GLOBAL int *parent, int count)
{
    int i = GLOBAL_ID(0);
    if (i >= count) return;
    parent[i] = i;
    parent[count + i] = NOWHERE;
}

KERNEL label_link(GLOBAL const uchar *grade, GLOBAL int *parent, int rows, int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    int here = i * columns + j;
    if (!grade[here]) return;
    if (j > 0 && grade[here - 1]) unite(parent, here, here - 1);
    if (i == 0) return;
    int above = here - columns;
    if (grade[above]) {
        /* Its neighbours left and right join it themselves. */
        unite(parent, here, above);
        return;
    }
    if (j > 0 && grade[above - 1]) unite(parent, here, above - 1);
    if (j + 1 < columns && grade[above + 1]) unite(parent, here, above + 1);
}

KERNEL label_seat(GLOBAL const uchar *grade, GLOBAL int *parent, int border, int rows, int columns)
{
    int p = GLOBAL_ID(0);
    if (p >= border) return;
    int here = frame_pixel(p, rows, columns);
    if (grade[here]) ATOMIC_MIN(&parent[rows * columns + find_root(parent, here)], p);
}

KERNEL label_mark(GLOBAL const uchar *grade, GLOBAL int *parent, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count && grade[i] == 2) ATOMIC_OR(&parent[count + find_root(parent, i)], STRONG);
}

KERNEL label_write(GLOBAL const uchar *grade, GLOBAL int *parent, GLOBAL int *labels, GLOBAL int *frame, int rows,
                   int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    int here = i * columns + j, value = 0, seat = 0;
    if (grade[here]) {
        int root = find_root(parent, here), mark = parent[rows * columns + root];
        seat = (mark & NOWHERE) + 1;
        value = root + 1;
        if (mark < 0) {
            seat = -seat;
            value = -value;
        }
    }
    labels[here] = value;
    if (i == 0) frame[j] = seat;
    if (i == rows - 1) frame[columns + j] = seat;
    if (j == 0) frame[2 * columns + i] = seat;
    if (j == columns - 1) frame[2 * columns + rows + i] = seat;
}

/* Two frames, the second behind the first. `work` holds parents, then a strength, then a first position, each by
 * position. A frame's values are 1 + the first position of their component, which so is its root. */
KERNEL join_start(GLOBAL const int *first, GLOBAL const int *second, GLOBAL int *work, int n, int count)
{
    int p = GLOBAL_ID(0);
    if (p >= count) return;
    int value = p < n ? first[p] : second[p - n];
    work[p] = value == 0 ? p : abs(value) - 1 + (p < n ? 0 : n);
    work[count + p] = 0;
    work[2 * count + p] = NOWHERE;
}

/* The sides that touch begin at `one` and `other`. */
KERNEL join_link(GLOBAL const int *first, GLOBAL const int *second, GLOBAL int *work, int n, int one, int other,
                 int length)
{
    int i = GLOBAL_ID(0);
    if (i >= length || first[one + i] == 0) return;
    for (int k = max(i - 1, 0); k < min(i + 2, length); k++)
        if (second[other + k] != 0) unite(work, one + i, n + other + k);
}

/* The position, in the first frame followed by the second, that position `o` of the union is. */
DEVICE int outer_place(int o, int rows, int columns, int second_rows, int second_columns, int stacked)
{
    int n = 2 * (rows + columns);
    if (stacked) {
        if (o < 2 * columns) return o < columns ? o : n + o;
        o -= 2 * columns;
        int height = rows + second_rows, right = o >= height;
        if (right) o -= height;
        if (o < rows) return 2 * columns + o + (right ? rows : 0);
        return n + 2 * columns + o - rows + (right ? second_rows : 0);
    }
    int width = columns + second_columns;
    if (o >= 2 * width) {
        o -= 2 * width;
        return o < rows ? 2 * columns + o : n + 2 * second_columns + o;
    }
    int bottom = o >= width;
    if (bottom) o -= width;
    if (o < columns) return o + (bottom ? columns : 0);
    return n + o - columns + (bottom ? second_columns : 0);
}

/* Strengths from the frames themselves, and first positions in the union's frame. */
KERNEL merge_mark(GLOBAL const int *first, GLOBAL const int *second, GLOBAL int *work, int n, int count, int outer,
                  int rows, int columns, int second_rows, int second_columns, int stacked)
{
    int p = GLOBAL_ID(0);
    if (p < count && (p < n ? first[p] : second[p - n]) < 0) ATOMIC_OR(&work[count + find_root(work, p)], 1);
    if (p < outer) {
        int place = outer_place(p, rows, columns, second_rows, second_columns, stacked);
        ATOMIC_MIN(&work[2 * count + find_root(work, place)], p);
    }
}

KERNEL merge_write(GLOBAL const int *first, GLOBAL const int *second, GLOBAL int *work, GLOBAL int *whole, int n,
                   int count, int outer, int rows, int columns, int second_rows, int second_columns, int stacked)
{
    int o = GLOBAL_ID(0);
    if (o >= outer) return;
    int place = outer_place(o, rows, columns, second_rows, second_columns, stacked), value = 0;
    if ((place < n ? first[place] : second[place - n]) != 0) {
        int root = find_root(work, place);
        value = work[2 * count + root] + 1;
        if (work[count + root]) value = -value;
    }
    whole[o] = value;
}

/* Strengths from the frames themselves and from the union's final frame. */
KERNEL spread_mark(GLOBAL const int *whole, GLOBAL const int *first, GLOBAL const int *second, GLOBAL int *work, int n,
                   int count, int outer, int rows, int columns, int second_rows, int second_columns, int stacked)
{
    int p = GLOBAL_ID(0);
    if (p < count && (p < n ? first[p] : second[p - n]) < 0) ATOMIC_OR(&work[count + find_root(work, p)], 1);
    if (p < outer && whole[p] < 0) {
        int place = outer_place(p, rows, columns, second_rows, second_columns, stacked);
        ATOMIC_OR(&work[count + find_root(work, place)], 1);
    }
}

KERNEL spread_write(GLOBAL const int *first, GLOBAL const int *second, GLOBAL int *work, GLOBAL int *first_final,
                    GLOBAL int *second_final, int n, int count)
{
    int p = GLOBAL_ID(0);
    if (p >= count) return;
    int value = abs(p < n ? first[p] : second[p - n]);
    if (work[count + find_root(work, p)]) value = -value;
    if (p < n) first_final[p] = value;
    else second_final[p - n] = value;
}

KERNEL apply_start(GLOBAL uchar *chosen, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count) chosen[i] = 0;
}

KERNEL apply_mark(GLOBAL const int *labels, GLOBAL const int *frame, GLOBAL uchar *chosen, int border, int rows,
                  int columns)
{
    int p = GLOBAL_ID(0);
    if (p < border && frame[p] < 0) chosen[abs(labels[frame_pixel(p, rows, columns)])] = 255;
}

KERNEL apply_write(GLOBAL const int *labels, GLOBAL const uchar *chosen, GLOBAL uchar *edges, int count)
{
    int i = GLOBAL_ID(0);
    if (i >= count) return;
    int value = labels[i];
    edges[i] = value < 0 ? 255 : chosen[value];
}
