// SPDX-License-Identifier: Apache-2.0
// One NCCL communicator of this rank: made without blocking, aborted by whoever sees it fail.
//
// NCCL calls return before they are done; the host then asks until they are, so that a peer that
// never comes is a timeout and not a hang. After a failure anywhere the communicator is aborted,
// which ends the kernels that wait for the peer, and every later call throws Aborted.
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/units.h"

namespace shardwright::exec {

struct NcclOptions {
  double init_timeout_s = 300;  // until all ranks have connected
  double call_timeout_s = 300;  // until a call is enqueued
  /// Thread blocks (SMs) that a collective may take; 0: as few as NCCL thinks reach the links'
  /// rate, because they are products' otherwise.
  int most_ctas = 0;
  bool registers_memory = true;
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

  void register_memory(void* data, Bytes bytes);
  /// Waits for the other ranks and gives everything back.
  void finish() noexcept;

 private:
  void await(const char* call, double timeout_s, const char* advice = nullptr);
  ncclConfig_t config(const char* name) const;

  NcclOptions options_;
  Hopeless hopeless_;
  mutable std::mutex mutex_;  // of comm_ against abort()
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  int rank_ = 0;
  int ranks_ = 1;
  std::vector<void*> registered_;
};

}  // namespace shardwright::exec
