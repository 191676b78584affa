/* What the C layer and its Python side (layer.py) share: a task graph as flat arrays. */
#ifndef LAYER_H
#define LAYER_H

#include <stdint.h>

/* A CPU implementation: its arrays in the order of the task's arguments, integers (addresses among them) and reals. */
typedef void (*cpu_function)(void **arrays, const int64_t *numbers, const double *reals);

enum { READ = 1, WRITE = 2, UPDATE = 3, SCRATCH = 4 };

struct codelets {
    int32_t n;
    const char **name;        /* one performance model each */
    const int32_t *on_cpu;    /* whether it has an implementation */
    const int32_t *on_opencl;
    int32_t n_programs;
    const char **source;      /* OpenCL programs */
    int32_t n_entries;
    const int32_t *entry_program;
    const char **entry_name;
    const double *speedup; /* CPU time over OpenCL time, which only heteroprio asks for */
};

struct graph {
    int64_t n_items;
    const int64_t *item_bytes;
    const int32_t *item_scratch; /* no value, memory of the executing device */
    const int32_t *item_owner;   /* MPI rank */

    int64_t n_tasks;
    const int32_t *task_codelet;
    const int32_t *task_priority;
    const int32_t *task_rank;    /* MPI rank that executes it */
    const uint64_t *task_cpu;    /* cpu_function, 0: none */
    const int64_t *argument_ptr; /* n_tasks + 1 */
    const int32_t *argument_item;
    const int32_t *argument_mode;
    const int64_t *number_ptr;
    const int64_t *numbers;
    const int64_t *real_ptr;
    const double *reals;

    const int64_t *launch_ptr;   /* n_tasks + 1: kernel launches of the OpenCL implementation, in order */
    const int32_t *launch_entry;
    const int32_t *launch_dims;
    const int64_t *launch_global; /* 3 a launch */
    const int64_t *launch_local;
    const int64_t *value_ptr;     /* n_launches + 1 */
    const int32_t *value_buffer;  /* index of the task's argument, -1: a number */
    const int32_t *value_bytes;
    const int64_t *value_bits;

    double *start_s;              /* of each task, CLOCK_MONOTONIC; zero where another rank ran it */
    double *finish_s;
    int32_t *worker;
};

#endif
