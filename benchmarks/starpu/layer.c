/* A task graph given as flat arrays, executed by StarPU: sequential task flow, access modes, priorities.
 *
 * One layer serves every application. Two trampolines are all codelets' implementations: on a CPU the task's function is
 * called with its arrays; on OpenCL the task's launches are enqueued and StarPU waits for them (STARPU_OPENCL_ASYNC).
 * With LAYER_MPI the same graph is inserted by every rank through StarPU-MPI. Errors are returned as negative numbers.
 */

#include "layer.h"

#include <starpu.h>
#include <starpu_heteroprio.h>
#include <starpu_opencl.h>
#ifdef LAYER_MPI
#include <starpu_mpi.h>
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct graph graph;
static struct codelets kinds;
static struct starpu_codelet *codelets;
static struct starpu_perfmodel *models;
static struct starpu_opencl_program *programs;
static cl_kernel *entries;
static cl_command_queue queue;
static starpu_data_handle_t *handles;
static struct starpu_data_descr *descriptors;
static char *arena;
static int n_opencl, synchronous;

double layer_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void run_cpu(void *buffers[], void *argument)
{
    int64_t task = (int64_t)(intptr_t)argument;
    int64_t first = graph.argument_ptr[task];
    int n = (int)(graph.argument_ptr[task + 1] - first);
    void *arrays[n > 0 ? n : 1];
    for (int i = 0; i < n; i++) arrays[i] = (void *)STARPU_VECTOR_GET_PTR(buffers[i]);
    graph.worker[task] = starpu_worker_get_id();
    graph.start_s[task] = layer_now();
    ((cpu_function)graph.task_cpu[task])(arrays, graph.numbers + graph.number_ptr[task],
                                         graph.reals + graph.real_ptr[task]);
    graph.finish_s[task] = layer_now();
}

static void run_opencl(void *buffers[], void *argument)
{
    int64_t task = (int64_t)(intptr_t)argument;
    graph.worker[task] = starpu_worker_get_id();
    graph.start_s[task] = layer_now();
    for (int64_t l = graph.launch_ptr[task]; l < graph.launch_ptr[task + 1]; l++) {
        cl_kernel kernel = entries[graph.launch_entry[l]];
        for (int64_t v = graph.value_ptr[l]; v < graph.value_ptr[l + 1]; v++) {
            cl_uint position = (cl_uint)(v - graph.value_ptr[l]);
            cl_int error;
            if (graph.value_buffer[v] >= 0) {
                cl_mem memory = (cl_mem)STARPU_VECTOR_GET_DEV_HANDLE(buffers[graph.value_buffer[v]]);
                error = clSetKernelArg(kernel, position, sizeof memory, &memory);
            } else {
                error = clSetKernelArg(kernel, position, (size_t)graph.value_bytes[v], &graph.value_bits[v]);
            }
            if (error != CL_SUCCESS) STARPU_OPENCL_REPORT_ERROR(error);
        }
        size_t global[3], local[3];
        for (int d = 0; d < 3; d++) {
            global[d] = (size_t)graph.launch_global[3 * l + d];
            local[d] = (size_t)graph.launch_local[3 * l + d];
        }
        cl_int error = clEnqueueNDRangeKernel(queue, kernel, (cl_uint)graph.launch_dims[l], NULL, global, local, 0, NULL,
                                              NULL);
        if (error != CL_SUCCESS) STARPU_OPENCL_REPORT_ERROR(error);
    }
    if (synchronous) {
        clFinish(queue);
        graph.finish_s[task] = layer_now();
    } else {
        clFlush(queue);
    }
}

/* Buckets of heteroprio: one a codelet; each kind of device takes first what it is relatively best at. */
static void set_up_heteroprio(unsigned context)
{
    int n = kinds.n;
    int order[n];
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && kinds.speedup[order[j]] > kinds.speedup[order[j - 1]]; j--) {
            int other = order[j];
            order[j] = order[j - 1];
            order[j - 1] = other;
        }
    int cpu = 0, device = 0;
    for (int i = 0; i < n; i++) {
        int bucket = order[i];
        if (n_opencl > 0 && kinds.on_opencl[bucket]) {
            starpu_heteroprio_set_mapping(context, STARPU_OPENCL_IDX, (unsigned)device++, (unsigned)bucket);
            if (kinds.speedup[bucket] > 1.0) {
                starpu_heteroprio_set_faster_arch(context, STARPU_OPENCL_IDX, (unsigned)bucket);
                if (kinds.on_cpu[bucket])
                    starpu_heteroprio_set_arch_slow_factor(context, STARPU_CPU_IDX, (unsigned)bucket,
                                                           (float)kinds.speedup[bucket]);
            }
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        int bucket = order[i];
        if (!kinds.on_cpu[bucket]) continue;
        starpu_heteroprio_set_mapping(context, STARPU_CPU_IDX, (unsigned)cpu++, (unsigned)bucket);
        if (kinds.speedup[bucket] <= 1.0 || !kinds.on_opencl[bucket] || n_opencl == 0)
            starpu_heteroprio_set_faster_arch(context, STARPU_CPU_IDX, (unsigned)bucket);
    }
    starpu_heteroprio_set_nb_prios(context, STARPU_CPU_IDX, (unsigned)cpu);
    if (n_opencl > 0) starpu_heteroprio_set_nb_prios(context, STARPU_OPENCL_IDX, (unsigned)device);
}

/* Start StarPU: workers, codelets with their performance models, OpenCL programs. The policy, the devices' number and
 * the calibration come from StarPU's environment variables, except heteroprio's set-up. */
int layer_start(const struct codelets *given, const char *policy, int wait_for_launches)
{
    struct starpu_conf conf;
    if (starpu_conf_init(&conf) != 0) return -1;
    kinds = *given;
    synchronous = wait_for_launches;
    conf.sched_policy_name = policy;
    conf.catch_signals = 0;
    n_opencl = getenv("STARPU_NOPENCL") ? atoi(getenv("STARPU_NOPENCL")) : 0;
    if (strcmp(policy, "heteroprio") == 0) {
        conf.sched_policy_init = set_up_heteroprio;
        conf.global_sched_ctx_min_priority = 0;
        conf.global_sched_ctx_max_priority = kinds.n - 1;
    }
#ifdef LAYER_MPI
    if (starpu_mpi_init_conf(NULL, NULL, 1, MPI_COMM_WORLD, &conf) != 0) return -2;
#else
    if (starpu_init(&conf) != 0) return -2;
#endif
    codelets = calloc((size_t)kinds.n, sizeof *codelets);
    models = calloc((size_t)kinds.n, sizeof *models);
    for (int i = 0; i < kinds.n; i++) {
        models[i].type = STARPU_HISTORY_BASED;
        models[i].symbol = kinds.name[i];
        starpu_codelet_init(&codelets[i]);
        codelets[i].name = kinds.name[i];
        codelets[i].model = &models[i];
        codelets[i].nbuffers = STARPU_VARIABLE_NBUFFERS;
        if (kinds.on_cpu[i]) codelets[i].cpu_funcs[0] = run_cpu;
        if (kinds.on_opencl[i]) {
            codelets[i].opencl_funcs[0] = run_opencl;
            codelets[i].opencl_flags[0] = wait_for_launches ? 0 : STARPU_OPENCL_ASYNC;
        }
    }
    if ((int)starpu_opencl_worker_get_count() < n_opencl) return -3;
    if (n_opencl == 0) return 0;
    programs = calloc((size_t)kinds.n_programs, sizeof *programs);
    entries = calloc((size_t)kinds.n_entries, sizeof *entries);
    for (int i = 0; i < kinds.n_programs; i++)
        if (starpu_opencl_load_opencl_from_string(kinds.source[i], &programs[i], "-cl-std=CL1.2") != 0) return -4;
    int device = starpu_worker_get_devid(starpu_worker_get_by_type(STARPU_OPENCL_WORKER, 0));
    starpu_opencl_get_queue(device, &queue);
    cl_command_queue_properties properties = 0;
    clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    if (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) return -6; /* a task's launches follow each other */
    for (int i = 0; i < kinds.n_entries; i++) {
        cl_command_queue unused;
        if (starpu_opencl_load_kernel(&entries[i], &unused, &programs[kinds.entry_program[i]], kinds.entry_name[i],
                                      device) != CL_SUCCESS)
            return -5;
    }
    return 0;
}

static int my_rank(void)
{
    int rank = 0;
#ifdef LAYER_MPI
    starpu_mpi_comm_rank(MPI_COMM_WORLD, &rank);
#endif
    return rank;
}

/* Register the graph's data: page-locked, touched memory of this rank for what it owns; scratch has no home. */
int layer_load(const struct graph *given)
{
    graph = *given;
    int rank = my_rank();
    int64_t bytes = 0, longest = 0;
    for (int64_t i = 0; i < graph.n_items; i++)
        if (!graph.item_scratch[i] && graph.item_owner[i] == rank) bytes += (graph.item_bytes[i] + 63) / 64 * 64;
    if (bytes > 0) {
        if (starpu_malloc((void **)&arena, (size_t)bytes) != 0) return -1;
        memset(arena, 0, (size_t)bytes);
    }
    handles = calloc((size_t)graph.n_items + 1, sizeof *handles);
    int64_t offset = 0;
    for (int64_t i = 0; i < graph.n_items; i++) {
        int here = !graph.item_scratch[i] && graph.item_owner[i] == rank;
        starpu_vector_data_register(&handles[i], here ? STARPU_MAIN_RAM : -1, here ? (uintptr_t)(arena + offset) : 0,
                                    (uint32_t)graph.item_bytes[i], 1);
        if (here) offset += (graph.item_bytes[i] + 63) / 64 * 64;
#ifdef LAYER_MPI
        if (!graph.item_scratch[i]) starpu_mpi_data_register(handles[i], i, graph.item_owner[i]);
#endif
    }
    for (int64_t t = 0; t < graph.n_tasks; t++) {
        int64_t n = graph.argument_ptr[t + 1] - graph.argument_ptr[t];
        if (n > longest) longest = n;
    }
    descriptors = calloc((size_t)(longest > 0 ? longest : 1), sizeof *descriptors);
    return 0;
}

/* Insert every task in program order and wait for all; the time from the first insertion to the end is returned. */
double layer_run(void)
{
    static const enum starpu_data_access_mode modes[] = {STARPU_NONE, STARPU_R, STARPU_W, STARPU_RW, STARPU_SCRATCH};
#ifdef LAYER_MPI
    starpu_mpi_barrier(MPI_COMM_WORLD);
#endif
    double start_s = layer_now();
    for (int64_t t = 0; t < graph.n_tasks; t++) {
        int64_t first = graph.argument_ptr[t];
        int n = (int)(graph.argument_ptr[t + 1] - first);
        for (int i = 0; i < n; i++) {
            descriptors[i].handle = handles[graph.argument_item[first + i]];
            descriptors[i].mode = modes[graph.argument_mode[first + i]];
        }
        int done;
#ifdef LAYER_MPI
        done = starpu_mpi_task_insert(MPI_COMM_WORLD, &codelets[graph.task_codelet[t]], STARPU_DATA_MODE_ARRAY,
                                      descriptors, n, STARPU_PRIORITY, graph.task_priority[t], STARPU_CL_ARGS_NFREE,
                                      (void *)(intptr_t)t, (size_t)1, STARPU_EXECUTE_ON_NODE, graph.task_rank[t], 0);
#else
        done = starpu_task_insert(&codelets[graph.task_codelet[t]], STARPU_DATA_MODE_ARRAY, descriptors, n,
                                  STARPU_PRIORITY, graph.task_priority[t], STARPU_CL_ARGS_NFREE, (void *)(intptr_t)t,
                                  (size_t)1, 0);
#endif
        if (done != 0) return -1.0;
    }
#ifdef LAYER_MPI
    starpu_mpi_wait_for_all(MPI_COMM_WORLD);
#else
    starpu_task_wait_for_all();
#endif
    return layer_now() - start_s;
}

/* Expected seconds of a task on the first worker of a kind, by StarPU's calibrated model; NaN where it has none. */
double layer_expected_s(int64_t task, int opencl)
{
    int worker = starpu_worker_get_by_type(opencl ? STARPU_OPENCL_WORKER : STARPU_CPU_WORKER, 0);
    if (worker < 0) return NAN;
    int n = (int)(graph.argument_ptr[task + 1] - graph.argument_ptr[task]);
    struct starpu_task *probe = starpu_task_create();
    probe->cl = &codelets[graph.task_codelet[task]];
    probe->nbuffers = n;
    probe->dyn_handles = malloc((size_t)(n > 0 ? n : 1) * sizeof *probe->dyn_handles);
    probe->dyn_modes = malloc((size_t)(n > 0 ? n : 1) * sizeof *probe->dyn_modes);
    for (int i = 0; i < n; i++) probe->dyn_handles[i] = handles[graph.argument_item[graph.argument_ptr[task] + i]];
    double expected_us = starpu_task_expected_length(probe, starpu_worker_get_perf_archtype(worker, 0), 0);
    probe->destroy = 0;
    starpu_task_destroy(probe);
    return expected_us * 1e-6;
}

/* Gather the data into main memory, release everything, shut down. */
void layer_stop(void)
{
    for (int64_t i = 0; i < graph.n_items; i++) starpu_data_unregister_no_coherency(handles[i]);
    if (arena) starpu_free(arena);
    for (int i = 0; n_opencl > 0 && i < kinds.n_entries; i++) starpu_opencl_release_kernel(entries[i]);
    for (int i = 0; n_opencl > 0 && i < kinds.n_programs; i++) starpu_opencl_unload_opencl(&programs[i]);
#ifdef LAYER_MPI
    starpu_mpi_shutdown();
#else
    starpu_shutdown();
#endif
}
