// SPDX-License-Identifier: Apache-2.0
#include "cli/measure/measuring_site.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <span>

#include "cli/build_info.h"
#include "cli/machine/machine.h"
#include "cli/run/rank_devices.h"
#include "exec/comm/local_communicator.h"
#include "kernels/host/parallel.h"
#ifdef SHARDWRIGHT_HAS_CUDA
#include "exec/cuda/cuda_device.h"
#include "exec/cuda/products.h"
#endif

namespace shardwright::cli {

HostSite::HostSite(int threads) : threads_(threads > 0 ? threads : this_processor().cores) {}

TraceOrigin HostSite::origin() const {
  return host_origin(threads_, exec::StreamMode::kInline);
}

std::vector<int> HostSite::rank_counts() const {
  // Alone, two that have a core each, and more than there are cores.
  if (threads_ == 1) return {1, 2};
  return {1, 2, std::min(2 * threads_, 8)};
}

double HostSite::seconds(double flops) const {
  constexpr double kSlowCoreFlops = 2e10;
  return flops / (kSlowCoreFlops * threads_);
}

Bytes HostSite::memory_bytes() const {
  return this_processor().memory_bytes / 2;
}

void HostSite::run(int ranks, const Body& body) {
  // As in run_ranks.cc: rank threads compute, too.
  kernels::host::Parallel parallel(std::max(1, threads_ - ranks + 1));
  exec::LocalWorld world(ranks, ranks);
  world.run([&](int rank) {
    exec::HostDevice device(parallel, exec::StreamMode::kInline);
    body(rank, device, world.groups(rank, device));
  });
}

double GpuSite::seconds(double flops) const {
  constexpr double kSlowGpuFlops = 2e13;
  return flops / kSlowGpuFlops;
}

void GpuSite::run(int ranks, const Body& body) {
  RunOptions options;
  options.device = DeviceKind::kCuda;
  options.transport = Transport::kLocal;
  options.gpus = gpus_;
  options.plan.gpus = ranks;
  const std::unique_ptr<RankDevices> devices = make_rank_devices(options, ranks);
  exec::LocalWorld world(ranks, ranks);
  world.run([&](int rank) {
    const std::unique_ptr<exec::Device> device = devices->make(rank);
    body(rank, *device, world.groups(rank, *device));
  });
}

ProductChoices GpuSite::choose_products([[maybe_unused]] exec::Executor& executor,
                                        [[maybe_unused]] const exec::Batch& batch,
                                        [[maybe_unused]] const ProductChoices& known) {
#ifdef SHARDWRIGHT_HAS_CUDA
  auto& device = dynamic_cast<exec::CudaDevice&>(executor.device());
  return exec::cuda::agree_on_products(executor, device, batch, gpus_.front().name,
                                       std::span(&known, 1));
#else
  return {};
#endif
}

TraceOrigin host_origin(int threads, exec::StreamMode streams) {
  const Processor processor = this_processor();
  TraceOrigin origin;
  origin.device = "host";
  origin.device_name = processor.name;
  origin.units = threads;
  origin.memory_bytes = processor.memory_bytes;
  origin.devices = 1;
  origin.streams = exec::name_of(streams);
  origin.software = "shardwright " + std::string(build_info().version);
  origin.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  return origin;
}

TraceOrigin virtual_origin() {
  TraceOrigin origin = host_origin(1, exec::StreamMode::kInline);
  origin.streams = "virtual";
  origin.devices = 0;
  origin.memory_bytes = 0;  // a share that nobody knows
  return origin;
}

}  // namespace shardwright::cli
