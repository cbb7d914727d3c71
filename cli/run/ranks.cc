// SPDX-License-Identifier: Apache-2.0
#include "cli/run/ranks.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "cli/machine/host_profile.h"
#include "cli/run/job_facts.h"
#include "cli/run/nccl.h"
#include "cli/run/printer.h"
#include "cli/run/rank_devices.h"
#include "cli/run/rank_tracing.h"
#include "cli/text.h"
#include "exec/comm/local_communicator.h"
#ifdef SHARDWRIGHT_HAS_CUDA
#include "exec/libraries/loaded_library.h"
#endif
#include "exec/step_memory.h"
#include "exec/train/checkpoint.h"
#include "exec/train/hang_watch.h"
#ifdef SHARDWRIGHT_HAS_MPI
#include "exec/comm/mpi_world.h"
#endif
#include "sim/core/base/error.h"
#include "sim/cost/collectives.h"

namespace shardwright::cli {
namespace {

RunOutcome run_local(const RunOptions& options, const std::vector<Schedule>& stages,
                     exec::TrainObserver& observer, const RankBody& body) {
  const auto ranks = static_cast<int>(options.plan.gpus);
  const std::unique_ptr<RankDevices> devices = make_rank_devices(options, ranks);
  exec::LocalWorld world(RankMesh(options.plan, stages.front().shard_ranks()));
  RunOutcome outcome;
  try {
    world.run([&](int rank) {
      const std::unique_ptr<exec::Device> device = devices->make(rank);
      RunOutcome mine = body(*device, world.groups(rank, *device, agreement(options)), rank,
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
RunOutcome run_mpi(const RunOptions& options, const std::vector<Schedule>& stages,
                   exec::TrainObserver& observer, const RankBody& body) {
  exec::MpiWorld world(options.streams != exec::StreamMode::kInline, options.rank_timeout_s);
  RunOutcome outcome;
  world.run([&] {
    if (world.ranks() != options.plan.gpus) {
      throw Error(fmt::format("MPI connects {} processes, but the plan has {} ranks", world.ranks(),
                              options.plan.gpus));
    }
    const std::unique_ptr<RankDevices> devices = make_rank_devices(options, 1);
    const std::unique_ptr<exec::Device> device = devices->make(world.rank());
    outcome = body(*device,
                   world.groups(RankMesh(options.plan, stages.front().shard_ranks()), *device,
                                agreement(options)),
                   world.rank(), world.rank() == 0 ? &observer : nullptr);
  });
  return outcome;
}
#endif

RunOutcome run_each(const RunOptions& options, const std::vector<Schedule>& stages,
                    exec::TrainObserver& observer, const RankBody& body) {
  switch (options.transport) {
    case Transport::kNccl:
#ifdef SHARDWRIGHT_HAS_NCCL
      return run_nccl(options, stages, observer, body);
#else
      break;
#endif
    case Transport::kMpi:
#ifdef SHARDWRIGHT_HAS_MPI
      return run_mpi(options, stages, observer, body);
#else
      break;
#endif
    case Transport::kLocal:
      break;
  }
  return run_local(options, stages, observer, body);
}

std::unique_ptr<exec::RangeMarker> make_range_marker(const RunOptions& options) {
#ifdef SHARDWRIGHT_HAS_CUDA
  if (options.marks_ranges) return exec::libraries::make_nvtx_marker();
#else
  static_cast<void>(options);
#endif
  return nullptr;
}

void print_hang(const std::string& sentence) {
  fmt::print(stderr, "error: {}\n", sentence);
  std::fflush(stderr);
}

/// A thread that waits for a GPU cannot be told to stop, so the process ends; the launcher ends
/// the others, whose own watchdogs have told where they are.
void watch_steps(exec::TrainOptions& train, double first_s) {
  train.hang.first_s = first_s;
  train.on_hang = [](const std::string& sentence) {
    print_hang(sentence);
    std::this_thread::sleep_for(std::chrono::seconds(2));  // other ranks of this process speak
    std::_Exit(static_cast<int>(ExitCode::kFailed));
  };
}

/// Of a checkpoint: a disk that answers late is told of, one that never does ends the process.
void tell_of_slow_save(const std::string& sentence, bool is_hang) {
  if (!is_hang) return say(stderr, fmt::format("note: {}", printable(sentence, true)));
  print_hang(sentence);
  std::_Exit(static_cast<int>(ExitCode::kFailed));
}

/// Of virtual clocks, by stage and operation: what the network takes. Else empty.
std::vector<std::vector<std::optional<Nanoseconds>>> network_times_of(
    const RunOptions& options, const std::vector<Schedule>& stages) {
  std::vector<std::vector<std::optional<Nanoseconds>>> times;
  if (options.network.empty()) return times;
  const profiles::Profile profile = virtual_profile(options.network);
  for (std::size_t s = 0; s < stages.size(); ++s)
    times.push_back(sim::network_times(stages[s], static_cast<std::int64_t>(s), profile));
  return times;
}

}  // namespace

RunOutcome run_ranks(const RunOptions& options, const std::vector<Schedule>& stages,
                     const exec::Data& data, const std::vector<std::filesystem::path>& resume,
                     exec::TrainObserver& observer, const OnReady& on_ready) {
  const bool threads = options.launch.launcher == exec::Launcher::kNone;
  const RankTracing tracing(options, threads ? static_cast<int>(options.plan.gpus) : 1);
  if (!tracing.note().empty()) observer.on_note(tracing.note());
  const auto network_ns = network_times_of(options, stages);
  // Ranks that are threads of this process on its processors.
  std::optional<exec::HangWatch> watch;
  if (options.transport == Transport::kLocal && options.device == DeviceKind::kHost &&
      options.plan.gpus > 1) {
    watch.emplace(options.plan.gpus, options.rank_timeout_s, [](const std::string& sentence) {
      print_hang(sentence);
      std::_Exit(static_cast<int>(ExitCode::kFailed));
    });
  }
  // One rank from its device to the end of its training.
  const RankBody body = [&](exec::Device& device, exec::RankGroups groups, int rank,
                            exec::TrainObserver* shown_to) {
    const RankMesh mesh(options.plan, stages.front().shard_ranks());
    const Schedule& schedule = stages[static_cast<std::size_t>(mesh.place_of(rank).pp)];
    require_free_memory(device, schedule);
    const std::unique_ptr<exec::StepTracer> tracer = tracing.tracer(rank, device);
    exec::ExecutorOptions executor_options;
    executor_options.trace = options.train.trace_step > 0;
    executor_options.tracer = tracer.get();
    const std::unique_ptr<exec::RangeMarker> ranges = make_range_marker(options);
    executor_options.ranges = ranges.get();
    if (!network_ns.empty()) {
      const auto& of_stage = network_ns[static_cast<std::size_t>(mesh.place_of(rank).pp)];
      executor_options.lasts = [&](const OpInstance& at, const Op&) { return of_stage[at.op]; };
    }
    exec::Executor executor(options.model, options.plan, schedule, device, std::move(groups),
                            executor_options);
    std::optional<exec::HangWatch::Member> watched;
    if (watch) watched.emplace(*watch, rank, executor);
    RunOutcome outcome;
    outcome.attention = choose_attention(device, options, data.train->packs_documents());
    exec::TrainOptions train = options.train;
    std::unique_ptr<exec::Checkpoint> chosen;
    if (!options.resume.empty()) {
      chosen = exec::choose_checkpoint(executor.world(), resume, [&](const std::string& note) {
        if (shown_to != nullptr) shown_to->on_note(note);
      });
      train.resume = chosen.get();
      if (chosen) outcome.resumed = chosen->folder().string();
    }
    if (options.device == DeviceKind::kCuda) watch_steps(train, options.rank_timeout_s);
    train.on_slow_save = tell_of_slow_save;
    // Ranks that wait for each other on GPUs must not load or allocate meanwhile.
    train.rehearses = options.transport == Transport::kNccl && options.plan.gpus > 1;
    train.prepare = product_choosing(device, options, shown_to);
    if (shown_to != nullptr) on_ready(outcome.attention, chosen.get());
    outcome.train = exec::train(executor, options.plan, data, train, shown_to);
    outcome.planned_bytes = executor.planned_bytes();
    outcome.peak_bytes = device.peak_allocated_bytes();
    return outcome;
  };
  return run_each(options, stages, observer, body);
}

void allocate_ranks(const RunOptions& options, const std::vector<Schedule>& stages,
                    exec::TrainObserver& observer) {
  run_each(options, stages, observer,
           [&](exec::Device& device, exec::RankGroups groups, int rank, exec::TrainObserver*) {
             const RankMesh mesh(options.plan, stages.front().shard_ranks());
             const Schedule& schedule = stages[static_cast<std::size_t>(mesh.place_of(rank).pp)];
             require_free_memory(device, schedule);
             const exec::StepMemory memory(schedule, *groups.shard, device);
             groups.world->barrier();
             groups.leave();
             return RunOutcome();
           });
}

}  // namespace shardwright::cli
