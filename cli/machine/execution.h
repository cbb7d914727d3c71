// SPDX-License-Identifier: Apache-2.0
// On what a run executes: the host or GPUs, and how its ranks reach each other; and why this
// machine or build does not run a plan that the executor would. Decided from what the user wishes
// and what machine and build offer, without touching a device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/comm/launch_environment.h"
#include "sim/core/chrome_trace.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/units.h"

namespace shardwright::cli {

enum class DeviceKind { kHost, kCuda };
enum class Transport { kLocal, kMpi, kNccl };
std::string_view name_of(DeviceKind device);
std::string_view name_of(Transport transport);

struct OfferedGpu {
  int index = 0;  // by the CUDA runtime's count
  std::string name;
  Bytes memory_bytes = 0;
  int multiprocessors = 0;
  std::string pci_address;
  int compute_major = 0;
  int compute_minor = 0;
};

struct ExecutionOffer {
  bool cuda_built = false;
  std::string why_no_cuda;  // BuildInfo's
  bool nccl_built = false;
  bool mpi_built = false;
  std::vector<OfferedGpu> gpus;
  std::string gpu_problem;       // why there is none, as one clause
  bool gpus_are_chosen = false;  // by CUDA_VISIBLE_DEVICES, so each process may see others
  Bytes host_memory_bytes = 0;
};

/// Asks the CUDA runtime, when this build has it, once in a process.
ExecutionOffer execution_offer();

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kHost;
  std::string why;  // a clause for the settings' origin, "no GPU: ..."
};

/// `wish` is auto, host or cuda. Throws Error with ExitCode::kMissingDevice and one sentence that
/// says what is missing.
DeviceChoice choose_device(const std::string& wish, const ExecutionOffer& offer);

/// `wish` is auto, local, nccl or mpi. Threads of one process meet locally unless every rank has a
/// GPU of its own and NCCL connects them; processes meet through MPI, or NCCL when on GPUs. Throws
/// Error when ranks cannot reach each other as wished.
Transport choose_transport(const std::string& wish, DeviceKind device,
                           const exec::LaunchEnvironment& launch, std::int64_t ranks,
                           const ExecutionOffer& offer);

/// What a run takes of a machine.
struct Execution {
  DeviceKind device = DeviceKind::kHost;
  Transport transport = Transport::kLocal;
  exec::LaunchEnvironment launch{};
  bool is_virtual = false;  // ranks of virtual clocks take turns
};

/// Throws Error where the machine does not have what ranks of the plan compute with.
void check_ranks_here(const ExecutionOffer& offer, const Execution& how, const Plan& plan);
/// Of the stage that needs most.
Bytes fullest_bytes(const std::vector<Schedule>& stages);
/// Throws Error where it has less memory than they take; `stages` are the plan's.
void check_memory_here(const ExecutionOffer& offer, const Execution& how, const Plan& plan,
                       const std::vector<Schedule>& stages);
/// What those and the choices above find of a plan that `run` takes with nothing else said, as a
/// sentence; empty: nothing.
std::string why_not_here(const ExecutionOffer& offer, const Plan& plan,
                         const std::vector<Schedule>& stages);

/// What the cuda device computes with, whether or not there is a GPU.
struct CudaParts {
  std::vector<std::string> attention;  // the fastest first; empty: this build has no cuda executor
  std::string attention_lacks;         // why some of them compute nothing here; mostly empty
  std::string products;                // "cuBLASLt 13.1.0", or "none: " and why
  std::string communicator;            // "NCCL 2.28.9, or local"
};
CudaParts cuda_parts();

/// For the traces of `ranks` ranks on these GPUs, without step times.
TraceOrigin gpu_origin(const std::vector<OfferedGpu>& gpus, std::int64_t ranks);

}  // namespace shardwright::cli
