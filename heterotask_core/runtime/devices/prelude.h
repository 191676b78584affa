/* Prelude of every C source variant: one source, compiled by OpenCL C and by NVRTC (CUDA).
 *
 * Prepended by the device backends; sources do not include it. Use:
 *
 *   KERNEL scale(GLOBAL const double *input, GLOBAL double *output, int rows, int columns)
 *   {
 *       int column = GLOBAL_ID(0), row = GLOBAL_ID(1);   // dimension 0 is the fastest
 *       if (row >= rows || column >= columns) return;    // sizes are rounded up to the local size
 *       output[(long)row * columns + column] = 2.0 * input[(long)row * columns + column];
 *   }
 *
 * Products and sums are never contracted (FP_CONTRACT OFF, --fmad=false), so that exact variants stay
 * bit-identical to NumPy. Use fixed types: uchar, ushort, uint, ulong, char, short, int, long (64 bits).
 */
#ifdef __OPENCL_VERSION__

#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define KERNEL __kernel void
#define DEVICE static
#define GLOBAL __global
#define CONST __constant
#define LOCAL __local
#define GLOBAL_ID(d) ((int)get_global_id(d))
#define LOCAL_ID(d) ((int)get_local_id(d))
#define LOCAL_SIZE(d) ((int)get_local_size(d))
#define GROUP_ID(d) ((int)get_group_id(d))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
/* 32-bit integer atomics on GLOBAL memory; each returns the old value. */
#define ATOMIC_ADD(pointer, value) atomic_add(pointer, value)
#define ATOMIC_MIN(pointer, value) atomic_min(pointer, value)
#define ATOMIC_MAX(pointer, value) atomic_max(pointer, value)
#define ATOMIC_OR(pointer, value) atomic_or(pointer, value)
#define ATOMIC_CAS(pointer, expected, value) atomic_cmpxchg(pointer, expected, value)
/* sin and cos of pi times a float. */
#define SINPI(value) sinpi(value)
#define COSPI(value) cospi(value)

#else /* CUDA */

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__
#define GLOBAL
#define CONST __constant__
#define LOCAL __shared__
#define HT_XYZ(v, d) ((int)((d) == 0 ? (v).x : (d) == 1 ? (v).y : (v).z))
#define LOCAL_ID(d) HT_XYZ(threadIdx, d)
#define LOCAL_SIZE(d) HT_XYZ(blockDim, d)
#define GROUP_ID(d) HT_XYZ(blockIdx, d)
#define GLOBAL_ID(d) (GROUP_ID(d) * LOCAL_SIZE(d) + LOCAL_ID(d))
#define BARRIER() __syncthreads()
#define ATOMIC_ADD(pointer, value) atomicAdd(pointer, value)
#define ATOMIC_MIN(pointer, value) atomicMin(pointer, value)
#define ATOMIC_MAX(pointer, value) atomicMax(pointer, value)
#define ATOMIC_OR(pointer, value) atomicOr(pointer, value)
#define ATOMIC_CAS(pointer, expected, value) atomicCAS(pointer, expected, value)
#define SINPI(value) sinpif(value)
#define COSPI(value) cospif(value)

#endif
