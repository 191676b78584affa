/* Task Bench's stencil of two points on StarPU: two tasks a step, each reads both outputs of the step before.
 *
 * metg_starpu STEPS REPEATS ITERATIONS... prints a line for every iteration count: it, and the seconds of each repeat.
 */
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 2, DOUBLES = 2 };

static void step(void *buffers[], void *argument)
{
    const double *left = (const double *)STARPU_VECTOR_GET_PTR(buffers[0]);
    const double *right = (const double *)STARPU_VECTOR_GET_PTR(buffers[1]);
    double *output = (double *)STARPU_VECTOR_GET_PTR(buffers[2]);
    long iterations = *(const long *)argument;
    double value = output[1];
    for (long i = 0; i < iterations; i++)
        value = value * 0.999999 + 1e-6;
    output[0] = left[0] == right[0] ? left[0] + 1.0 : -1.0;
    output[1] = value;
}

static struct starpu_codelet codelet = {
    .cpu_funcs = {step}, .nbuffers = 3, .modes = {STARPU_R, STARPU_R, STARPU_W}, .name = "step"};

int main(int argc, char **argv)
{
    static double data[2][WIDTH][DOUBLES];
    starpu_data_handle_t handles[2][WIDTH];
    if (argc < 4 || starpu_init(NULL) != 0) {
        fprintf(stderr, "metg_starpu STEPS REPEATS ITERATIONS...; or StarPU does not start\n");
        return 1;
    }
    for (int row = 0; row < 2; row++)
        for (int point = 0; point < WIDTH; point++)
            starpu_vector_data_register(&handles[row][point], STARPU_MAIN_RAM, (uintptr_t)data[row][point], DOUBLES,
                                        sizeof(double));
    int steps = atoi(argv[1]), repeats = atoi(argv[2]);
    for (int which = 3; which < argc; which++) {
        long iterations = atol(argv[which]);
        printf("%ld", iterations);
        for (int repeat = -1; repeat < repeats; repeat++) {
            double start_us = starpu_timing_now();
            for (int s = 0; s < steps; s++)
                for (int point = 0; point < WIDTH; point++)
                    if (starpu_task_insert(&codelet, STARPU_R, handles[s % 2][0], STARPU_R, handles[s % 2][1],
                                           STARPU_W, handles[(s + 1) % 2][point], STARPU_CL_ARGS_NFREE, &iterations,
                                           sizeof iterations, 0) != 0)
                        return 1;
            starpu_task_wait_for_all();
            /* The first pass warms up. */
            if (repeat >= 0)
                printf(" %.9f", 1e-6 * (starpu_timing_now() - start_us));
        }
        printf("\n");
    }
    for (int row = 0; row < 2; row++)
        for (int point = 0; point < WIDTH; point++)
            starpu_data_unregister(handles[row][point]);
    starpu_shutdown();
    return 0;
}
