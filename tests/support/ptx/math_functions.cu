// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's mathematical library that kernels call and C++'s library computes with
// other last bits. Compiled to PTX alone: math_functions.h runs it.
namespace ptx {

__global__ void expf_of(float x, float* y) {
  *y = expf(x);
}
__global__ void exp2f_of(float x, float* y) {
  *y = exp2f(x);
}
__global__ void logf_of(float x, float* y) {
  *y = logf(x);
}
__global__ void tanhf_of(float x, float* y) {
  *y = tanhf(x);
}
__global__ void erfcf_of(float x, float* y) {
  *y = erfcf(x);
}
__global__ void log_of(double x, double* y) {
  *y = log(x);
}

}  // namespace ptx
