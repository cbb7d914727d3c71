// SPDX-License-Identifier: Apache-2.0
// An NCCL for machines without a GPU: ranks are threads of this process, streams are those of host
// devices, and a collective is a task of the stream that waits there for the other ranks, as a
// kernel of NCCL does. It implements the functions of <nccl.h> that the project calls; a test links
// it in the library's place.
//
// It chooses how a collective goes as NCCL 2.28.9 does (exec/libraries/rules.json), on a node with
// or without an NVSwitch. Rings and trees add in the order of a ring and, for bf16, round at every
// hop; NVLS adds in an order that differs between calls and rounds once. Calls answer
// ncclInProgress first and enqueue only when the caller has asked again, so who does not wait
// records its events too early. A rank that waits for a dead peer waits until it is aborted.
//
// It blocks where NCCL does: the calls of a communicator run one after the other in the order in
// which its rank made them, whatever their streams; a send ends with its receive; the calls of a
// group begin together; and the first call between two ranks of a communicator is in progress until
// both have made one. So an order of calls that would hang hangs here.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "exec/device.h"

namespace shardwright::testing {

/// What stands behind a cudaStream_t here.
struct FakeStream {
  exec::Device* device = nullptr;
  exec::StreamId id = 0;
  cudaStream_t native() { return reinterpret_cast<cudaStream_t>(this); }
};

struct NcclCall {
  std::string name;  // "ncclAllGather"
  std::string comm;  // "world", "shard", "forward messages"
  int rank = 0;      // in the communicator
  int ranks = 1;
  int world_rank = 0;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  int peer = -1;  // or root
  exec::StreamId stream = -1;
  const void* from = nullptr;
  void* to = nullptr;
};

struct FakeNccl {
  int polls = 2;  // how often a call answers ncclInProgress; 0: done at once
  /// The collective of this rank from whose call on its communicator has failed.
  int failing_rank = -1;
  int failing_collective = 0;  // counts from 0, over all communicators
  ncclResult_t failure = ncclUnhandledCudaError;
  /// The collective of this rank that is never launched, as where GPUs do not reach each other: no
  /// call fails, and all ranks wait.
  int stuck_rank = -1;
  int stuck_collective = 0;
  const char* last_error = "said by the fake";
  bool registers = true;  // whether memory can be registered
  bool has_nvswitch = false;
  bool shares_memory = true;   // what ncclMemAlloc makes has a handle
  bool in_one_process = true;  // the ranks are threads, as in truth
  /// What a rank launches begins in the order in which it was launched, over all communicators, as
  /// where streams share a queue of the hardware.
  bool starts_in_order = false;
};

/// What it was last reset to.
FakeNccl fake_nccl();
/// Forgets everything; no communicator may be alive.
void reset_fake_nccl(const FakeNccl& options = {});
/// Collectives in the order in which a rank of the world called them.
std::vector<NcclCall> nccl_calls(int world_rank);
/// What every communicator that was made was told of thread blocks: the most, and the policy.
std::vector<std::pair<int, int>> nccl_blocks();
/// By which way the collectives of the first ranks went, and how many by each.
struct NcclPaths {
  int rings = 0;
  int nvls = 0;    // on users' buffers, or through its own with all its channels
  int copies = 0;  // NVLS through its own buffers with the few channels of the policy
};
NcclPaths nccl_paths();
/// Communicators, memory and registrations that were made and not given back.
int live_nccl_objects();

}  // namespace shardwright::testing
