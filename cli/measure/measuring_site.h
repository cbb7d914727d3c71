// SPDX-License-Identifier: Apache-2.0
// Where measure measures: something that gives ranks a device and communicators.
//
// What is measured (cli/measure/measure_model.h) talks to exec::Device and exec::Communicator
// alone, so a machine's processor and its GPUs differ only in the site.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cli/machine/execution.h"
#include "exec/communicator.h"
#include "exec/device.h"
#include "exec/executor.h"
#include "exec/host/host_device.h"
#include "sim/core/chrome_trace.h"
#include "sim/core/plan.h"
#include "sim/core/product_choices.h"

namespace shardwright::cli {

class MeasuringSite {
 public:
  using Body = std::function<void(int rank, exec::Device& device, exec::RankGroups groups)>;

  virtual ~MeasuringSite() = default;
  /// Of its traces, without step times.
  virtual TraceOrigin origin() const = 0;
  /// Numbers of ranks that are worth measuring, ascending, beginning with 1.
  virtual std::vector<int> rank_counts() const = 0;
  virtual DType param_dtype() const = 0;
  /// What a step of so many flops on one rank of a few takes at most, roughly.
  virtual double seconds(double flops) const = 0;
  virtual Bytes memory_bytes() const = 0;
  /// Calls body(rank, device, groups) for every rank, each on a thread of its own, and waits. All
  /// are one shard group. The first error is thrown again.
  virtual void run(int ranks, const Body& body) = 0;
  /// The fastest of a library's algorithms for each product of the executor's step, `known` ones
  /// not timed again; none where there is nothing to choose. Called by all ranks before anything is
  /// run.
  virtual ProductChoices choose_products(exec::Executor& executor, const exec::Batch& batch,
                                         const ProductChoices& known);
};

/// The processor: ranks are threads that share it.
class HostSite final : public MeasuringSite {
 public:
  /// 0 threads: one for each core.
  explicit HostSite(int threads = 0);
  TraceOrigin origin() const override;
  std::vector<int> rank_counts() const override;
  DType param_dtype() const override { return DType::kFp32; }
  double seconds(double flops) const override;
  Bytes memory_bytes() const override;
  void run(int ranks, const Body& body) override;

 private:
  int threads_;
};

/// The first GPU, by one rank: links between GPUs are nccl-tests' to measure, and copies between
/// ranks of one GPU say nothing about them. Not yet run on a GPU.
class GpuSite final : public MeasuringSite {
 public:
  /// `gpus` is not empty.
  explicit GpuSite(std::vector<OfferedGpu> gpus) : gpus_(std::move(gpus)) {}
  TraceOrigin origin() const override { return gpu_origin(gpus_, 1); }
  std::vector<int> rank_counts() const override { return {1}; }
  DType param_dtype() const override { return DType::kBf16; }
  double seconds(double flops) const override;
  Bytes memory_bytes() const override { return gpus_.front().memory_bytes; }
  void run(int ranks, const Body& body) override;
  ProductChoices choose_products(exec::Executor& executor, const exec::Batch& batch,
                                 const ProductChoices& known) override;

 private:
  std::vector<OfferedGpu> gpus_;
};

/// Traces of the host device on this machine.
TraceOrigin host_origin(int threads, exec::StreamMode streams);
/// For traces of virtual clocks: each rank has a core of its own.
TraceOrigin virtual_origin();

}  // namespace shardwright::cli
