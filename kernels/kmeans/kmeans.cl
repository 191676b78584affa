/* k-means of 8-bit colours for OpenCL and CUDA (see the runtime's prelude). REAL is float or double, defined by the
 * variant. Distances are summed in the NumPy variant's order; sums of pixels are integers, so their order is free. */

#ifndef REAL /* kernels without real numbers are compiled without it */
#define REAL float
#endif

#define MAX_CLUSTERS 256
#define FIELDS 4 /* red, green, blue, count */

DEVICE int nearest(GLOBAL const uchar *pixel, GLOBAL const REAL *centres, int clusters)
{
    REAL r = pixel[0], g = pixel[1], b = pixel[2], best = 0;
    int found = 0;
    for (int k = 0; k < clusters; k++) {
        REAL dr = r - centres[3 * k], dg = g - centres[3 * k + 1], db = b - centres[3 * k + 2];
        REAL distance = (dr * dr + dg * dg) + db * db;
        if (k == 0 || distance < best) {
            best = distance;
            found = k;
        }
    }
    return found;
}

KERNEL clear_sums(GLOBAL uint *sums, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count) sums[i] = 0;
}

/* Every work group sums `each` pixels an item into local memory first: few atomics reach global memory. */
KERNEL accumulate(GLOBAL const uchar *pixels, GLOBAL const REAL *centres, GLOBAL uint *sums, int count, int clusters,
                  int each)
{
    LOCAL uint own[MAX_CLUSTERS * FIELDS];
    for (int i = LOCAL_ID(0); i < clusters * FIELDS; i += LOCAL_SIZE(0)) own[i] = 0;
    BARRIER();
    int start = GROUP_ID(0) * LOCAL_SIZE(0) * each + LOCAL_ID(0);
    for (int step = 0; step < each; step++) {
        int i = start + step * LOCAL_SIZE(0);
        if (i < count) {
            GLOBAL const uchar *pixel = pixels + 3L * i;
            int k = nearest(pixel, centres, clusters) * FIELDS;
            ATOMIC_ADD(&own[k], (uint)pixel[0]);
            ATOMIC_ADD(&own[k + 1], (uint)pixel[1]);
            ATOMIC_ADD(&own[k + 2], (uint)pixel[2]);
            ATOMIC_ADD(&own[k + 3], 1u);
        }
    }
    BARRIER();
    for (int i = LOCAL_ID(0); i < clusters * FIELDS; i += LOCAL_SIZE(0))
        if (own[i]) ATOMIC_ADD(&sums[i], own[i]);
}

KERNEL widen(GLOBAL const uint *sums, GLOBAL long *wide, int count)
{
    int i = GLOBAL_ID(0);
    if (i < count) wide[i] = sums[i];
}

KERNEL assign(GLOBAL const uchar *pixels, GLOBAL const REAL *centres, GLOBAL int *labels, int count, int clusters)
{
    int i = GLOBAL_ID(0);
    if (i < count) labels[i] = nearest(pixels + 3L * i, centres, clusters);
}

KERNEL add_part(GLOBAL const long *part, GLOBAL long *total, int count, int first)
{
    int i = GLOBAL_ID(0);
    if (i < count) total[i] = first ? part[i] : total[i] + part[i];
}

/* An empty cluster gives 0 / 0, not a number, which the storing task reports. */
KERNEL update(GLOBAL const long *total, GLOBAL REAL *centres, int clusters)
{
    int i = GLOBAL_ID(0);
    if (i >= 3 * clusters) return;
    centres[i] = (REAL)((double)total[i / 3 * FIELDS + i % 3] / (double)total[i / 3 * FIELDS + 3]);
}
