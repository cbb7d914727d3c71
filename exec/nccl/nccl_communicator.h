// SPDX-License-Identifier: Apache-2.0
// The collectives of one rank of a group, by NCCL on the streams of a CUDA device.
//
// Sums are made in NCCL's order, which differs with the number of ranks, so W ranks equal one rank
// only within rounding. Rings and trees add in one order every time; NVLS, which NCCL takes by
// itself where an NVSwitch connects the GPUs, does not, so that two runs with the same ranks give
// the same bits only where it is off (keep_order_of_sums). Sums are of the type that is reduced,
// fp32 or bf16, and nothing is divided on the way.
//
// What NCCL chooses by is in exec/libraries/rules.json. Its policy EFFICIENCY, few thread blocks,
// is asked for only where NVLS can then work on this program's memory: of ncclMemAlloc, registered,
// each rank a process of its own. Otherwise it would copy everything by these few. Not yet run on a
// GPU.
//
// Shares that do not divide evenly go as one broadcast or reduction a rank in a single NCCL group;
// units of parameters are padded, so that steps never need that.
//
// A send ends when its message is taken. So between the stages of a pipeline each sender, receiver
// and direction has a queue of its own (sim/core/message_queue.h): an NCCL communicator of two
// ranks and a stream, on which nothing else waits.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "exec/communicator.h"
#include "sim/core/layout.h"
#include "sim/core/message_queue.h"
#include "sim/core/units.h"

namespace shardwright::exec {

// One NCCL communicator of this rank: made without blocking, aborted by whoever sees it fail.
//
// NCCL calls return before they are done; the host then asks until they are, so that a peer that
// never comes is a timeout and not a hang. After a failure anywhere the communicator is aborted,
// which ends the kernels that wait for the peer, and every later call throws Aborted.

struct NcclOptions {
  double init_timeout_s = 300;  // until all ranks have connected
  double call_timeout_s = 300;  // until a call is enqueued
  /// Thread blocks (SMs) that a collective may take; 0: as few as reach the links' rate where
  /// memory allows that, because they are products' otherwise; else NCCL's choice.
  int most_ctas = 0;
  bool is_deterministic = false;  // no sums that NVLS makes, so nothing is chosen for it
  /// Of this machine's processes; 0: the caller's. Ranks with one number are threads of one.
  std::int64_t process = 0;
  bool registers_memory = true;
  bool few_ctas = false;  // decided by NcclWorld: NVLS works on memory of all ranks
  double watch_s = 0.02;  // between two looks at what may have failed
  /// How long a rank that sees an error of the network waits for the news of who died.
  double echo_s = 2;
};

/// Whether a rank has failed, so that nothing is worth waiting for.
using Hopeless = std::function<bool()>;

class NcclGroup {
 public:
  /// All ranks connect; `id` comes from one of them. The calling thread's device is used. Throws
  /// Error at the timeout.
  NcclGroup(int ranks, int rank, const ncclUniqueId& id, const NcclOptions& options,
            Hopeless hopeless);
  /// A part of `parent`: the ranks with the same color, by key. All ranks of the parent call it, or
  /// split_without(). A collective takes at most so many thread blocks; 0: as the parent's.
  NcclGroup(NcclGroup& parent, int color, int key, const char* name, int most_ctas = 0);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// Takes part in a split of which no part is this rank's.
  void split_without();

  /// Calls enqueue(comm), which returns what NCCL said, and waits until the work is enqueued.
  /// Throws Error, or Aborted after abort().
  void run(const char* call, const std::function<ncclResult_t(ncclComm_t comm)>& enqueue);
  /// What has failed since the last look, in NCCL's words; `remote`: probably elsewhere first.
  struct Failure {
    std::string what;
    bool remote = false;
  };
  std::optional<Failure> failure();
  /// Ends all work on the device. May be called from any thread, any number of times.
  void abort() noexcept;
  bool aborted() const;

  /// As Communicator::allocate.
  std::unique_ptr<Allocation> allocate(Device& device, Bytes bytes);
  /// Waits for the other ranks and gives everything back.
  void finish() noexcept;

 private:
  void await(const char* call, double timeout_s, const char* advice = nullptr);
  ncclConfig_t config(const char* name) const;
  void register_memory(void* data, Bytes bytes);

  NcclOptions options_;
  Hopeless hopeless_;
  mutable std::mutex mutex_;  // of comm_ against abort()
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  int rank_ = 0;
  int ranks_ = 1;
  std::vector<void*> registered_;
};

/// The CUDA stream behind a device's stream.
using NativeStreams = std::function<cudaStream_t(StreamId)>;

/// One end of a queue of messages.
struct NcclQueue {
  MessageQueue which;                // by ranks of the group
  std::shared_ptr<NcclGroup> group;  // of its two ranks, the lower one first
  StreamId stream = -1;              // none yet
};

// Ranks whose devices are connected by NCCL: how their groups come to be, and how one failure ends
// them all.
//
// A thread of every rank looks again and again for errors that NCCL met on the device and for
// ranks that the rendezvous lost; then it aborts this rank's groups, so that nobody waits for ever
// in a kernel. The cause that is reported is the first one: an error of the network is most often
// the echo of a rank that died, so its rank gets a moment to be found.

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

  /// Keeps NVLS, which adds in no fixed order, off in this process, where the environment does not
  /// say otherwise. To be called before anything of NCCL, on the only thread. Returns a note where
  /// the environment wants it on, else nothing.
  static std::string keep_order_of_sums();
  /// "NCCL 2.28.9"
  static std::string version();

 private:
  /// The queues of `rank` among those of a pipeline whose stages are the members of `group`.
  std::vector<NcclQueue> make_queues(const std::vector<MessageQueue>& queues, NcclGroup& group,
                                     int rank);
  /// That collectives keep from products, as far as that is known.
  int held_multiprocessors(int shard_ranks) const;
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
