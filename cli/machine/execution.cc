// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/execution.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <numeric>

#include "cli/build_info.h"
#include "cli/machine/machine.h"
#ifdef SHARDWRIGHT_HAS_CUDA
#include "exec/cuda/attention.h"
#include "exec/cuda/gpus.h"
#include "exec/cuda/products.h"
#endif
#ifdef SHARDWRIGHT_HAS_NCCL
#include "exec/nccl/nccl_communicator.h"
#endif
#include "exec/model_ops.h"
#include "sim/core/base/error.h"
#include "sim/core/placement.h"

namespace shardwright::cli {
namespace {

constexpr const char* kNoMpi =
    "this build has no mpi executor, expected one process with --ranks, or a build where MPI is "
    "installed (Debian: libopenmpi-dev openmpi-bin)";

[[noreturn]] void missing(const std::string& sentence) {
  throw Error(sentence, ExitCode::kMissingDevice);
}

std::string no_cuda(const ExecutionOffer& offer) {
  if (!offer.cuda_built) return no_cuda_executor(offer.why_no_cuda);
  return offer.gpu_problem;
}

Transport between_processes(const std::string& wish, DeviceKind device,
                            const exec::LaunchEnvironment& launch, const ExecutionOffer& offer) {
  const std::string started =
      fmt::format("{} started {} processes", name_of(launch.launcher), launch.ranks);
  if (wish == "local") {
    throw Error(fmt::format("communicator is 'local', but {}, expected auto or {}", started,
                            device == DeviceKind::kCuda ? "nccl" : "mpi"));
  }
  if (device == DeviceKind::kCuda) {
    const auto gpus = static_cast<std::int64_t>(offer.gpus.size());
    if (launch.local_ranks > gpus && !offer.gpus_are_chosen) {
      throw Error(
          fmt::format("{} started {} processes on this machine, which has {} GPU{}, "
                      "expected one process for each GPU",
                      name_of(launch.launcher), launch.local_ranks, gpus, gpus == 1 ? "" : "s"));
    }
    if (offer.nccl_built) return Transport::kNccl;
    missing(started + ", but this build has no nccl executor to connect their GPUs");
  }
  if (launch.launcher == exec::Launcher::kTorchrun) {
    missing(
        fmt::format("{}, but on the host device only mpirun or srun processes can reach each "
                    "other; expected one of those, or one process with --ranks {}",
                    started, launch.ranks));
  }
  if (offer.mpi_built) return Transport::kMpi;
  missing(kNoMpi);
}

}  // namespace

std::string_view name_of(DeviceKind device) {
  return device == DeviceKind::kCuda ? "cuda" : "host";
}

std::string_view name_of(Transport transport) {
  switch (transport) {
    case Transport::kLocal:
      return "local";
    case Transport::kMpi:
      return "mpi";
    case Transport::kNccl:
      return "nccl";
  }
  return "?";
}

namespace {

ExecutionOffer find_offer() {
  const BuildInfo build = build_info();
  ExecutionOffer offer;
  offer.cuda_built = build.has_executor("cuda");
  offer.why_no_cuda = build.why_no_cuda;
  offer.nccl_built = build.has_executor("nccl");
  offer.mpi_built = build.has_executor("mpi");
  offer.host_memory_bytes = this_processor().memory_bytes;
#ifdef SHARDWRIGHT_HAS_CUDA
  offer.gpus_are_chosen = std::getenv("CUDA_VISIBLE_DEVICES") != nullptr;
  exec::cuda::Gpus found = exec::cuda::find_gpus();
  offer.gpu_problem = std::move(found.problem);
  for (exec::cuda::UsableGpu& gpu : found.usable) {
    offer.gpus.push_back({gpu.index, std::move(gpu.name), gpu.memory_bytes, gpu.multiprocessors,
                          std::move(gpu.pci_address), gpu.compute_major, gpu.compute_minor});
  }
#endif
  return offer;
}

}  // namespace

ExecutionOffer execution_offer() {
  static const ExecutionOffer offer = find_offer();
  return offer;
}

DeviceChoice choose_device(const std::string& wish, const ExecutionOffer& offer) {
  if (wish == "host") return {DeviceKind::kHost, "as asked"};
  if (offer.cuda_built && !offer.gpus.empty()) {
    return {DeviceKind::kCuda, fmt::format("{} x {}", offer.gpus.size(), offer.gpus.front().name)};
  }
  if (wish == "cuda") missing(fmt::format("device is 'cuda', but {}", no_cuda(offer)));
  return {DeviceKind::kHost, fmt::format("no GPU: {}", no_cuda(offer))};
}

Transport choose_transport(const std::string& wish, DeviceKind device,
                           const exec::LaunchEnvironment& launch, std::int64_t ranks,
                           const ExecutionOffer& offer) {
  const bool cuda = device == DeviceKind::kCuda;
  if (wish == "nccl" && !cuda) {
    missing("communicator is 'nccl', which connects GPUs, but the device is host");
  }
  if (wish == "nccl" && !offer.nccl_built) {
    missing("communicator is 'nccl', but this build has no nccl executor");
  }
  if (wish == "mpi" && cuda) {
    throw Error(
        "communicator is 'mpi', which connects processors, but the device is cuda; "
        "expected auto, local or nccl");
  }
  if (launch.launcher != exec::Launcher::kNone) {
    return between_processes(wish, device, launch, offer);
  }
  const bool one_gpu_each = cuda && ranks <= static_cast<std::int64_t>(offer.gpus.size());
  if (wish == "nccl") {
    if (one_gpu_each) return Transport::kNccl;
    throw Error(
        fmt::format("communicator is 'nccl', which takes one rank a GPU, but there are {} "
                    "ranks and {} GPUs; expected auto or local",
                    ranks, offer.gpus.size()));
  }
  if (wish == "mpi") {
    if (offer.mpi_built) return Transport::kMpi;
    missing(kNoMpi);
  }
  if (wish == "auto" && one_gpu_each && ranks > 1 && offer.nccl_built) return Transport::kNccl;
  return Transport::kLocal;
}

void check_ranks_here(const ExecutionOffer& offer, const Execution& how, const Plan& plan) {
  if (how.device == DeviceKind::kCuda && plan.numerics.precision == Precision::kFp8) {
    for (const OfferedGpu& gpu : offer.gpus) {
      const std::string why =
          exec::why_no_fp8(gpu.name, gpu.compute_major, gpu.compute_minor, plan.numerics.recipe());
      if (!why.empty()) missing(why);
    }
  }
  const std::int64_t most = how.is_virtual ? 4096 : 256;
  if (how.transport != Transport::kLocal || plan.gpus <= most) return;
  throw Error(fmt::format(
      "ranks is {}, but ranks are threads of one process, expected at most {}, or processes that "
      "mpirun, srun or torchrun starts{}",
      plan.gpus, most, how.is_virtual ? "" : ", or --clock virtual"));
}

Bytes fullest_bytes(const std::vector<Schedule>& stages) {
  Bytes most = 0;
  for (const Schedule& stage : stages) most = std::max(most, static_memory_bytes(stage));
  return most;
}

namespace {

double mean_bytes(const std::vector<Schedule>& stages) {
  const Bytes sum = std::accumulate(
      stages.begin(), stages.end(), Bytes{0},
      [](Bytes bytes, const Schedule& stage) { return bytes + static_memory_bytes(stage); });
  return static_cast<double>(sum) / static_cast<double>(stages.size());
}

}  // namespace

void check_memory_here(const ExecutionOffer& offer, const Execution& how, const Plan& plan,
                       const std::vector<Schedule>& stages) {
  const bool is_alone = how.launch.launcher == exec::Launcher::kNone;
  const std::int64_t here =
      is_alone ? plan.gpus : std::max<std::int64_t>(1, how.launch.local_ranks);
  const bool on_gpus = how.device == DeviceKind::kCuda;
  const auto places = on_gpus ? std::ssize(offer.gpus) : 1;
  const std::int64_t share = std::max<std::int64_t>(1, (here + places - 1) / places);
  // Ranks of all stages share a host.
  const double each = on_gpus ? static_cast<double>(fullest_bytes(stages)) : mean_bytes(stages);
  const double needed = static_cast<double>(share) * each;
  const auto has =
      static_cast<double>(on_gpus ? offer.gpus.front().memory_bytes : offer.host_memory_bytes);
  if (needed <= has) return;
  throw Error(
      fmt::format(
          "{} rank{} of this plan take{} {:.2f} GiB of memory, but {} {:.2f}, expected a plan "
          "for less (shardwright tune), or a machine with more",
          share, share == 1 ? "" : "s", share == 1 ? "s" : "", needed / kGiB,
          on_gpus ? "a GPU has" : "this machine has", has / kGiB),
      ExitCode::kInfeasible);
}

std::string why_not_here(const ExecutionOffer& offer, const Plan& plan,
                         const std::vector<Schedule>& stages) {
  try {
    Execution how;
    how.device = choose_device("auto", offer).kind;
    how.transport = choose_transport("auto", how.device, how.launch, plan.gpus, offer);
    check_ranks_here(offer, how, plan);
    check_memory_here(offer, how, plan, stages);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

CudaParts cuda_parts() {
  CudaParts parts;
#ifdef SHARDWRIGHT_HAS_CUDA
  for (const std::string_view name : exec::cuda::AttentionSet().names()) {
    parts.attention.emplace_back(name);
  }
  parts.attention_lacks = exec::cuda::AttentionSet::lacks();
  try {
    parts.products = "cuBLASLt " + exec::cuda::Products::library_version();
  } catch (const Error& error) {
    parts.products = fmt::format("none: {}", error.what());
  }
  parts.communicator = "local";
#ifdef SHARDWRIGHT_HAS_NCCL
  try {
    parts.communicator = exec::NcclWorld::version() + ", or local";
  } catch (const Error& error) {
    parts.communicator = fmt::format("local; {}", error.what());
  }
#endif
#endif
  return parts;
}

TraceOrigin gpu_origin(const std::vector<OfferedGpu>& gpus, std::int64_t ranks) {
  TraceOrigin origin;
  origin.device = name_of(DeviceKind::kCuda);
  origin.device_name = gpus.front().name;
  origin.units = gpus.front().multiprocessors;
  origin.memory_bytes = gpus.front().memory_bytes;
  const auto count = static_cast<std::int64_t>(gpus.size());
  if (ranks > count) origin.devices = count;
  origin.software = "shardwright " + build_info().version;
  origin.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  return origin;
}

}  // namespace shardwright::cli
