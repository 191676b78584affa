/* Canny for OpenCL and CUDA (see the runtime's prelude). The arithmetic is the NumPy variants', operation by
 * operation, in float. Divisions and square roots go through double, whose rounding to float is the correctly
 * rounded one whatever the compiler's single-precision options are. */

DEVICE float divide(float a, float b) { return (float)((double)a / (double)b); }
DEVICE float root_of(float a) { return (float)sqrt((double)a); }

KERNEL clear_bytes(GLOBAL uchar *target, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count) target[i] = 0;
}

KERNEL clear_floats(GLOBAL float *target, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count) target[i] = 0.0f;
}

/* Copy rows x columns floats between two row-major arrays at given places. */
KERNEL copy_block(GLOBAL const float *source, int source_width, int source_row, int source_column,
                  GLOBAL float *target, int target_width, int target_row, int target_column, int rows, int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    target[(long)(target_row + i) * target_width + target_column + j] =
        source[(long)(source_row + i) * source_width + source_column + j];
}

KERNEL blur_down(GLOBAL const float *whole, GLOBAL const float *taps, GLOBAL float *lines, int offset, int rows,
                 int width, int radius)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= width) return;
    long here = (long)(i + radius) * width + j;
    float total = whole[here] * taps[0];
    for (int k = radius; k > 0; k--)
        total += (whole[here - (long)k * width] + whole[here + (long)k * width]) * taps[k];
    lines[(long)offset + (long)i * width + j] = total;
}

KERNEL blur_across(GLOBAL const float *lines, int offset, GLOBAL const float *taps, GLOBAL const float *row_mask,
                   GLOBAL const float *column_mask, GLOBAL float *blurred, int rows, int columns, int radius, int row,
                   int column, float eps)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    long here = (long)offset + (long)i * (columns + 2 * radius) + j + radius;
    float total = lines[here] * taps[0];
    for (int k = radius; k > 0; k--) total += (lines[here - k] + lines[here + k]) * taps[k];
    float mask = row_mask[row + i] * column_mask[column + j];
    blurred[(long)i * columns + j] = divide(total, mask + eps);
}

/* first_row..last_column: the part of the padded tile that lies in the image; beyond it pixels repeat. */
KERNEL gradient(GLOBAL const float *whole, GLOBAL float *down, GLOBAL float *across, GLOBAL float *magnitude, int rows,
                int columns, int first_row, int last_row, int first_column, int last_column)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    int width = columns + 2;
    long a = (long)max(i, first_row) * width, b = (long)(i + 1) * width, c = (long)min(i + 2, last_row) * width;
    int l = max(j, first_column), m = j + 1, r = min(j + 2, last_column);
    float y = (whole[c + m] - whole[a + m]) * 2.0f + ((whole[c + l] - whole[a + l]) + (whole[c + r] - whole[a + r]));
    float x = (whole[b + r] - whole[b + l]) * 2.0f + ((whole[a + r] - whole[a + l]) + (whole[c + r] - whole[c + l]));
    long here = (long)i * columns + j;
    down[here] = y;
    across[here] = x;
    magnitude[here] = root_of(y * y + x * x);
}

KERNEL thin_out(GLOBAL const float *whole, GLOBAL const float *down, GLOBAL const float *across, GLOBAL float *thin,
                int rows, int columns, int first_row, int last_row, int first_column, int last_column)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    long here = (long)i * columns + j, width = columns + 2, middle = (i + 1) * width + j + 1;
    float m = whole[middle], result = 0.0f;
    if (m > 0.0f && i >= first_row && i < last_row && j >= first_column && j < last_column) {
        float y = down[here], x = across[here], ay = fabs(y), ax = fabs(x);
        int same = (y >= 0.0f && x >= 0.0f) || (y <= 0.0f && x <= 0.0f);
        int steep = same ? ay > ax : ay >= ax;
        float weight = steep ? divide(ax, ay) : divide(ay, ax);
        long step = same ? width : -width, straight = steep ? step : 1;
        float plus = whole[middle + step + 1] * weight + whole[middle + straight] * (1.0f - weight);
        float minus = whole[middle - step - 1] * weight + whole[middle - straight] * (1.0f - weight);
        if (plus <= m && minus <= m) result = m;
    }
    thin[here] = result;
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

/* The scratch holds the parents, then a flag a component. */
KERNEL label_start(GLOBAL int *parent, int count)
{
    int i = GLOBAL_ID(0);
    if (i >= count) return;
    parent[i] = i;
    parent[count + i] = 0;
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
    if (j > 0 && grade[above - 1]) unite(parent, here, above - 1);
    if (grade[above]) unite(parent, here, above);
    if (j + 1 < columns && grade[above + 1]) unite(parent, here, above + 1);
}

KERNEL label_mark(GLOBAL const uchar *grade, GLOBAL int *parent, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count && grade[i] == 2) ATOMIC_OR(&parent[count + find_root(parent, i)], 1);
}

KERNEL label_write(GLOBAL const uchar *grade, GLOBAL int *parent, GLOBAL int *labels, GLOBAL int *frame, int rows,
                   int columns)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    int here = i * columns + j, value = 0;
    if (grade[here]) {
        int root = find_root(parent, here);
        value = parent[rows * columns + root] ? -(root + 1) : root + 1;
    }
    labels[here] = value;
    if (i == 0) frame[j] = value;
    if (i == rows - 1) frame[columns + j] = value;
    if (j == 0) frame[2 * columns + i] = value;
    if (j == columns - 1) frame[2 * columns + rows + i] = value;
}

KERNEL apply_mark(GLOBAL const int *frame, GLOBAL uchar *chosen, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count && frame[i] < 0) chosen[-frame[i]] = 1;
}

KERNEL apply_write(GLOBAL const int *labels, GLOBAL const uchar *chosen, GLOBAL uchar *edges, int count)
{
    int i = GLOBAL_ID(0);
    if (i >= count) return;
    int value = labels[i];
    edges[i] = value < 0 || chosen[value] ? 255 : 0;
}
