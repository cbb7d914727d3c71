// SPDX-License-Identifier: Apache-2.0
#include "cli/run/nccl.h"

#ifdef SHARDWRIGHT_HAS_NCCL
#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "cli/run/job_facts.h"
#include "cli/run/rank_devices.h"
#include "exec/comm/bootstrap.h"
#include "exec/cuda/cuda_device.h"
#include "exec/nccl/nccl_communicator.h"
#include "sim/core/message_queue.h"
#include "sim/pipeline/completes.h"

namespace shardwright::cli {
namespace {

RunOutcome run_one(const RunOptions& options, const std::vector<Schedule>& stages,
                   RankDevices& devices, int place, exec::Bootstrap& bootstrap,
                   exec::TrainObserver* observer, const RankBody& body) {
  const std::unique_ptr<exec::Device> device = devices.make(place);
  const auto& cuda = static_cast<const exec::CudaDevice&>(*device);
  exec::NcclOptions nccl;
  nccl.most_ctas = options.collective_sms;
  nccl.is_deterministic = options.plan.deterministic;
  exec::NcclWorld world(bootstrap, nccl);
  exec::RankGroups groups = world.groups(
      RankMesh(options.plan, stages.front().shard_ranks()), message_queues(stages), *device,
      [&cuda](exec::StreamId stream) { return cuda.stream(stream); }, agreement(options));
  return body(*device, std::move(groups), bootstrap.rank(), observer);
}

}  // namespace

RunOutcome run_nccl(const RunOptions& options, const std::vector<Schedule>& stages,
                    exec::TrainObserver& observer, const RankBody& body) {
  const auto ranks = static_cast<int>(options.plan.gpus);
  if (stages.size() > 1) sim::check_rendezvous(stages);
  if (options.plan.deterministic) {
    const std::string note = exec::NcclWorld::keep_order_of_sums();
    if (!note.empty()) observer.on_note(note);
  }
  RunOutcome outcome;
  if (options.launch.launcher == exec::Launcher::kNone) {
    const std::unique_ptr<RankDevices> devices = make_rank_devices(options, ranks);
    exec::LocalBootstrapRoom(ranks).run([&](exec::Bootstrap& bootstrap) {
      const bool shown = bootstrap.rank() == 0;
      RunOutcome mine = run_one(options, stages, *devices, bootstrap.rank(), bootstrap,
                                shown ? &observer : nullptr, body);
      if (shown) outcome = std::move(mine);
    });
    return outcome;
  }
  if (options.launch.ranks != options.plan.gpus) {
    throw Error(fmt::format("{} started {} processes, but the plan has {} ranks",
                            name_of(options.launch.launcher), options.launch.ranks, ranks));
  }
  const exec::Environment environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  const exec::Rendezvous rendezvous =
      exec::choose_rendezvous(options.rendezvous, options.launch, environment);
  if (options.launch.rank == 0 && !rendezvous.is_secret()) {
    observer.on_note(
        fmt::format("ranks meet at {} without a secret, so whoever reaches that port and guesses "
                    "the job's name can take part; give all ranks SHARDWRIGHT_MEETING_KEY",
                    rendezvous.name()));
  }
  exec::BootstrapTimes times;
  times.exchange_s = options.rank_timeout_s;
  const std::unique_ptr<exec::Bootstrap> bootstrap = exec::meet(
      rendezvous, options.launch, fmt::format("shardwright {}", options.train.tool_version), times);
  const std::unique_ptr<RankDevices> devices = make_rank_devices(options, 1);
  exec::run_rank(*bootstrap, [&] {
    outcome = run_one(options, stages, *devices, static_cast<int>(options.launch.local_rank),
                      *bootstrap, bootstrap->rank() == 0 ? &observer : nullptr, body);
  });
  return outcome;
}

}  // namespace shardwright::cli
#endif
