KERNEL scale(GLOBAL float *x, float factor, int n)
{
    int i = GLOBAL_ID(0);
    if (i >= n) return;
    x[i] = x[i] * factor;
}
