KERNEL twice(GLOBAL const double *input, GLOBAL double *output, int n)
{
    int i = GLOBAL_ID(0);
    if (i < n)
        output[i] = 2.0 * input[i] + 1.0;
}
