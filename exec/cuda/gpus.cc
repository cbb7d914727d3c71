// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/gpus.h"

#include <cuda_runtime.h>
#include <fmt/core.h>

#include <cstdlib>

#include "exec/libraries/rules.h"

namespace shardwright::exec::cuda {
namespace {

std::string version_text(int code) {
  return fmt::format("{}.{}", code / 1000, code % 1000 / 10);
}

/// What serves programs of that CUDA, as the end of a sentence.
std::string way_out_of(int runtime) {
  const std::string drivers = libraries::drivers_of(runtime / 1000);
  return drivers.empty() ? "" : ": driver " + drivers + " with its folder in LD_LIBRARY_PATH";
}

std::string problem_of(cudaError_t status) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  switch (status) {
    case cudaErrorInsufficientDriver:
      return driver == 0
                 ? "there is no CUDA driver on this machine"
                 : fmt::format("the driver is for CUDA {}, while this build needs {}{}",
                               version_text(driver), version_text(runtime), way_out_of(runtime));
    case cudaErrorNoDevice:
      return "the CUDA driver lists no device";
    case cudaErrorStubLibrary:
      return "libcuda.so.1 is the toolkit's stub for linking, not a driver";
    default:
      return fmt::format("CUDA says: {} ({}){}", cudaGetErrorString(status),
                         cudaGetErrorName(status), libraries::way_out_of_status(status));
  }
}

}  // namespace

Gpus find_gpus() {
  constexpr int kKeepsWhatIsSet = 0;
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeepsWhatIsSet);
  Gpus gpus;
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count == 0) status = cudaErrorNoDevice;
  if (status != cudaSuccess) {
    gpus.problem = problem_of(status);
    return gpus;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    status = cudaGetDeviceProperties(&properties, index);
    if (status != cudaSuccess) {
      gpus.problem = problem_of(status);
      continue;
    }
    if (properties.major < kOldestComputeMajor) {
      gpus.problem =
          fmt::format("{} has compute capability {}.{}, expected {}.0 or newer", properties.name,
                      properties.major, properties.minor, kOldestComputeMajor);
      continue;
    }
    gpus.usable.push_back({index, properties.name, properties.major, properties.minor,
                           properties.multiProcessorCount,
                           static_cast<Bytes>(properties.totalGlobalMem),
                           fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                       properties.pciBusID, properties.pciDeviceID)});
  }
  if (!gpus.usable.empty()) gpus.problem.clear();
  return gpus;
}

}  // namespace shardwright::exec::cuda
