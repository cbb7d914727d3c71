// SPDX-License-Identifier: Apache-2.0
// Ranks whose devices are connected by NCCL: how their groups come to be, and how one failure ends
// them all.
//
// A thread of every rank looks again and again for errors that NCCL met on the device and for
// ranks that the rendezvous lost; then it aborts this rank's groups, so that nobody waits for ever
// in a kernel. The cause that is reported is the first one: an error of the network is most often
// the echo of a rank that died, so its rank gets a moment to be found.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "exec/communicator.h"
#include "exec/nccl/nccl_communicator.h"
#include "sim/core/layout.h"

namespace shardwright::exec {

class NcclWorld {
 public:
  /// All ranks of the rendezvous make one, on the thread whose CUDA device they use.
  explicit NcclWorld(Bootstrap& bootstrap, const NcclOptions& options = {});
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  /// The communicators of this rank, once; all ranks call it together. `queues` are those of a
  /// pipeline's messages, by stage.
  RankGroups groups(const RankMesh& mesh, const std::vector<MessageQueue>& queues, Device& device,
                    const NativeStreams& streams, const OnWorld& on_world = {});
  /// Of data parallelism alone. Throws Error when `shard_ranks` does not divide the ranks.
  RankGroups groups(int shard_ranks, Device& device, const NativeStreams& streams);

  /// "NCCL 2.28.9"
  static std::string version();

 private:
  /// The queues of `rank` among those of a pipeline whose stages are the members of `group`.
  std::vector<NcclQueue> make_queues(const std::vector<MessageQueue>& queues, NcclGroup& group,
                                     int rank);
  std::shared_ptr<NcclGroup> keep(std::shared_ptr<NcclGroup> group);
  void watch();
  void abort_all();
  /// Whether something has failed; tells the rendezvous of it.
  bool look();

  Bootstrap& bootstrap_;
  NcclOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::vector<std::shared_ptr<NcclGroup>> groups_;
  std::thread watcher_;
};

}  // namespace shardwright::exec
