/* One Jacobi step of the heat equation for OpenCL and CUDA (see the runtime's prelude); the arithmetic is the NumPy
 * variant's, operation by operation, in float. `has` holds a bit a side with a neighbour: N 1, S 2, W 4, E 8; where
 * there is none the border is insulated (the neighbour is the cell itself) and the pointers are not touched. */

#define NORTH 1
#define SOUTH 2
#define WEST 4
#define EAST 8

KERNEL jacobi(GLOBAL const float *field, GLOBAL const float *north, GLOBAL const float *south,
            GLOBAL const float *west, GLOBAL const float *east, GLOBAL float *next, GLOBAL float *to_north,
            GLOBAL float *to_south, GLOBAL float *to_west, GLOBAL float *to_east, int rows, int columns, int has,
            float alpha)
{
    int j = GLOBAL_ID(0), i = GLOBAL_ID(1);
    if (i >= rows || j >= columns) return;
    long here = (long)i * columns + j;
    float own = field[here];
    float n = i > 0 ? field[here - columns] : has & NORTH ? north[j] : own;
    float s = i + 1 < rows ? field[here + columns] : has & SOUTH ? south[j] : own;
    float w = j > 0 ? field[here - 1] : has & WEST ? west[i] : own;
    float e = j + 1 < columns ? field[here + 1] : has & EAST ? east[i] : own;
    float value = own + alpha * (((n + s) + (w + e)) - 4.0f * own);
    next[here] = value;
    if (i == 0 && has & NORTH) to_north[j] = value;
    if (i + 1 == rows && has & SOUTH) to_south[j] = value;
    if (j == 0 && has & WEST) to_west[i] = value;
    if (j + 1 == columns && has & EAST) to_east[i] = value;
}
