#include "cli/run_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "exec/comm/local_world.h"
#ifdef SHARDWRIGHT_HAS_MPI
#include "exec/comm/mpi_world.h"
#endif
#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

/// One rank from its device to the end of its training.
RunOutcome run_rank(const RunOptions& options, const Schedule& schedule, const exec::Data& data,
                    exec::HostDevice& device, exec::RankGroups groups,
                    exec::TrainObserver* observer) {
  exec::ExecutorOptions executor_options;
  executor_options.trace = options.train.trace_step > 0;
  exec::Executor executor(options.model, options.plan, schedule, device, std::move(groups),
                          executor_options);
  RunOutcome outcome;
  outcome.train = exec::train(executor, options.plan, data, options.train, observer);
  outcome.planned_bytes = executor.planned_bytes();
  outcome.peak_bytes = device.peak_allocated_bytes();
  return outcome;
}

RunOutcome run_local(const RunOptions& options, const Schedule& schedule, const exec::Data& data,
                     exec::TrainObserver& observer) {
  const auto ranks = static_cast<int>(options.plan.gpus);
  // Rank threads compute, too.
  kernels::host::Parallel parallel(std::max(1, options.threads - ranks + 1));
  exec::LocalWorld world(ranks, static_cast<int>(schedule.shard_ranks));
  RunOutcome outcome;
  try {
    world.run([&](int rank) {
      exec::HostDevice device(parallel, options.streams,
                              options.train.seed + static_cast<std::uint64_t>(rank));
      RunOutcome mine = run_rank(options, schedule, data, device, world.groups(rank, device),
                                 rank == 0 ? &observer : nullptr);
      if (rank == 0) outcome = std::move(mine);
    });
  } catch (const Error& error) {
    if (ranks == 1) throw;
    throw Error(fmt::format("rank {} of {}: {}", world.failed_rank(), ranks, error.what()),
                error.code());
  }
  return outcome;
}

#ifdef SHARDWRIGHT_HAS_MPI
RunOutcome run_mpi(const RunOptions& options, const Schedule& schedule, const exec::Data& data,
                   exec::TrainObserver& observer) {
  exec::MpiWorld world(options.streams != exec::StreamMode::kInline);
  RunOutcome outcome;
  world.run([&] {
    if (world.ranks() != options.plan.gpus) {
      throw Error(fmt::format("MPI connects {} processes, but the plan has {} ranks", world.ranks(),
                              options.plan.gpus));
    }
    kernels::host::Parallel parallel(options.threads);
    exec::HostDevice device(parallel, options.streams,
                            options.train.seed + static_cast<std::uint64_t>(world.rank()));
    outcome = run_rank(options, schedule, data, device,
                       world.groups(static_cast<int>(schedule.shard_ranks), device),
                       world.rank() == 0 ? &observer : nullptr);
  });
  return outcome;
}
#endif

}  // namespace

RunOutcome run_ranks(const RunOptions& options, const Schedule& schedule, const exec::Data& data,
                     exec::TrainObserver& observer) {
#ifdef SHARDWRIGHT_HAS_MPI
  if (options.transport == Transport::kMpi) return run_mpi(options, schedule, data, observer);
#endif
  return run_local(options, schedule, data, observer);
}

}  // namespace shardwright::cli
