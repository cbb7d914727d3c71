// SPDX-License-Identifier: Apache-2.0
#include "cli/run/rank_devices.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "exec/host/host_device.h"
#include "exec/model_ops.h"
#include "exec/step_memory.h"
#include "sim/core/base/check.h"
#ifdef SHARDWRIGHT_HAS_CUDA
#include <fmt/core.h>

#include "cli/render/text/quantity.h"
#include "exec/cuda/cuda_device.h"
#include "exec/cuda/products.h"
#include "exec/host_memory.h"
#include "exec/libraries/rules.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/read_file.h"
#endif

namespace shardwright::cli {
namespace {

[[maybe_unused]] constexpr std::size_t kMostProductsBytes = std::size_t{1} << 24;

class HostRanks final : public RankDevices {
 public:
  // Rank threads compute, too.
  HostRanks(const RunOptions& options, int ranks)
      : parallel_(std::max(1, options.threads - ranks + 1)),
        streams_(options.streams),
        seed_(options.train.seed) {}

  std::unique_ptr<exec::Device> make(int place) override {
    return std::make_unique<exec::HostDevice>(parallel_, streams_,
                                              seed_ + static_cast<std::uint64_t>(place));
  }

 private:
  kernels::host::Parallel parallel_;
  exec::StreamMode streams_;
  std::uint64_t seed_;
};

/// Ranks of virtual clocks compute on a thread each, as many at once as there are processors.
class VirtualRanks final : public RankDevices {
 public:
  VirtualRanks(int ranks, int processors)
      : parallel_(static_cast<std::size_t>(ranks)), processors_(processors) {
    for (auto& own : parallel_) own = std::make_unique<kernels::host::Parallel>(1);
  }

  std::unique_ptr<exec::Device> make(int place) override {
    return std::make_unique<exec::HostDevice>(*parallel_[static_cast<std::size_t>(place)],
                                              processors_);
  }

 private:
  std::vector<std::unique_ptr<kernels::host::Parallel>> parallel_;
  exec::StreamClocks::Processors processors_;
};

#ifdef SHARDWRIGHT_HAS_CUDA
/// Ranks take the GPUs in turn; where there are more ranks than GPUs, they share.
class CudaRanks final : public RankDevices {
 public:
  CudaRanks(const RunOptions& options, int ranks) : options_(options), ranks_(ranks) {}

  std::unique_ptr<exec::Device> make(int place) override {
    const auto gpus = options_.gpus.size();
    SHARDWRIGHT_CHECK(gpus > 0, "rank {} has no GPU", place);
    const OfferedGpu& gpu = options_.gpus[static_cast<std::size_t>(place) % gpus];
    // Pinned memory that the device makes is then near it, too.
    if (options_.binds_cpus) exec::bind_this_thread(exec::cpus_near(gpu.pci_address));
    exec::CudaDeviceOptions device;
    device.gpu = gpu.index;
    device.attention = options_.attention_kernel;
    device.deterministic = options_.plan.deterministic;
    device.run_ahead = exec::libraries::run_ahead_of(ranks_);
    if (options_.transport == Transport::kLocal) {
      // Collectives of local ranks are copies and sums over each other's memory.
      const auto used = std::min(gpus, static_cast<std::size_t>(options_.plan.gpus));
      for (std::size_t i = 0; i < used; ++i) device.peers.push_back(options_.gpus[i].index);
    }
    return std::make_unique<exec::CudaDevice>(device);
  }

 private:
  const RunOptions& options_;
  int ranks_;  // of this process
};
#endif

}  // namespace

std::unique_ptr<RankDevices> make_rank_devices(const RunOptions& options, int ranks) {
#ifdef SHARDWRIGHT_HAS_CUDA
  if (options.device == DeviceKind::kCuda) return std::make_unique<CudaRanks>(options, ranks);
#endif
  if (!options.network.empty()) return std::make_unique<VirtualRanks>(ranks, options.threads);
  return std::make_unique<HostRanks>(options, ranks);
}

void require_free_memory(exec::Device& device, const Schedule& schedule) {
#ifdef SHARDWRIGHT_HAS_CUDA
  if (const auto* cuda = dynamic_cast<exec::CudaDevice*>(&device)) {
    cuda->require_free(exec::StepMemory::planned_bytes(schedule));
  }
#else
  static_cast<void>(device);
  static_cast<void>(schedule);
#endif
}

AttentionNote choose_attention(exec::Device& device, const RunOptions& options, bool documents) {
#ifdef SHARDWRIGHT_HAS_CUDA
  if (auto* cuda = dynamic_cast<exec::CudaDevice*>(&device)) {
    const exec::cuda::AttentionChoice choice = cuda->choose_attention(
        exec::attention_shape_of(options.model, options.plan), options.plan.param_dtype, documents);
    return {std::string(choice.implementation->name()), choice.why,
            choice.implementation->library()};
  }
#else
  static_cast<void>(device);
  static_cast<void>(options);
  static_cast<void>(documents);
#endif
  return {};
}

#ifdef SHARDWRIGHT_HAS_CUDA
namespace {

/// What was not the library's first choice, and what that saves.
std::string note_of(const ProductChoices& agreed) {
  std::size_t others = 0;
  double first_s = 0, chosen_s = 0;
  for (const ProductChoice& choice : agreed.choices) {
    others += choice.place > 0;
    first_s += choice.first_s;
    chosen_s += choice.seconds;
  }
  return fmt::format(
      "{} of {} products run by another algorithm than the first of cuBLASLt {}: once each they "
      "take {} instead of {}",
      others, agreed.choices.size(), agreed.release, quantity(chosen_s, "s"),
      quantity(first_s, "s"));
}

}  // namespace
#endif

std::function<void(exec::Executor&, const exec::Batch&)> product_choosing(
    exec::Device& device, const RunOptions& options, exec::TrainObserver* shown_to) {
#ifdef SHARDWRIGHT_HAS_CUDA
  auto* cuda = dynamic_cast<exec::CudaDevice*>(&device);
  if (cuda != nullptr && options.times_products) {
    return [cuda, &options, shown_to](exec::Executor& executor, const exec::Batch& batch) {
      namespace fs = std::filesystem;
      const fs::path file = fs::path(options.out) / "products.json";
      // What the run was computed with so far keeps its bits.
      std::vector<ProductChoices> known;
      std::error_code ignored;
      if (shown_to != nullptr && fs::exists(file, ignored)) {
        known.push_back(product_choices_from(read_file(file, kMostProductsBytes), file.string()));
      }
      known.push_back(options.product_choices);
      const ProductChoices agreed =
          exec::cuda::agree_on_products(executor, *cuda, batch, options.gpus.front().name, known);
      if (shown_to == nullptr) return;
      write_file_atomically(file, to_json(agreed), OutputPlace::kInFolder);
      shown_to->on_note(note_of(agreed));
    };
  }
#else
  static_cast<void>(device);
  static_cast<void>(options);
  static_cast<void>(shown_to);
#endif
  return {};
}

}  // namespace shardwright::cli
