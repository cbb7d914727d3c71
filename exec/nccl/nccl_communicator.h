// SPDX-License-Identifier: Apache-2.0
// The collectives of one rank of a group, by NCCL on the streams of a CUDA device.
//
// Sums are made in NCCL's order, which differs with the number of ranks, so W ranks equal one rank
// only within rounding; two runs with the same ranks give the same bits. Sums are of the type that
// is reduced, fp32 or bf16, and nothing is divided on the way.
//
// Shares that do not divide evenly go as one broadcast or reduction a rank in a single NCCL group;
// units of parameters are padded, so that steps never need that.
//
// A send ends when its message is taken. So between the stages of a pipeline each sender, receiver
// and direction has a queue of its own (sim/core/message_queue.h): an NCCL communicator of two
// ranks and a stream, on which nothing else waits.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "exec/communicator.h"
#include "exec/nccl/nccl_group.h"
#include "sim/core/message_queue.h"

namespace shardwright::exec {

/// The CUDA stream behind a device's stream.
using NativeStreams = std::function<cudaStream_t(StreamId)>;

/// One end of a queue of messages.
struct NcclQueue {
  MessageQueue which;                // by ranks of the group
  std::shared_ptr<NcclGroup> group;  // of its two ranks, the lower one first
  StreamId stream = -1;              // none yet
};

class NcclCommunicator final : public Communicator {
 public:
  /// `seat` is this rank's in the group's rendezvous on the host; `queues` are those of which it is
  /// an end, in one order on all ranks.
  NcclCommunicator(std::shared_ptr<NcclGroup> group, Bootstrap& bootstrap,
                   const BootstrapGroup& seat, Device& device, NativeStreams streams,
                   std::vector<NcclQueue> queues = {});
  ~NcclCommunicator() override;

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->ranks(); }
  /// One rank's sum is what it gives.
  bool ordered() const override { return size() == 1; }

  void all_gather(StreamId stream, Array mine, Array whole) override;
  void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array scratch,
                      SumOrder order) override;
  void all_reduce(StreamId stream, Array data, SumOrder order) override;
  void broadcast(StreamId stream, Array data, int root) override;
  void send(StreamId stream, Array data, int to) override;
  void receive(StreamId stream, Array data, int from) override;
  void post(StreamId stream, Array data, int to, int channel) override;
  void fetch(StreamId stream, Array data, int from, int channel) override;
  StreamId message_stream(StreamId stream, int peer, int channel, bool sends) override;
  void connect_messages(Array data) override;
  void register_memory(void* data, Bytes bytes) override;
  void check() override;
  void barrier() override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void leave() noexcept override;

 private:
  bool even(const Array& whole) const { return whole.size % size() == 0; }
  void reduce_to(StreamId stream, const Array& whole, const Array& mine);
  /// That of a message; it has a stream.
  NcclQueue& queue_of(int peer, int channel, bool sends);
  void give_stream(NcclQueue& queue);
  void pass(const NcclQueue& queue, const Array& data);

  std::shared_ptr<NcclGroup> group_;
  Bootstrap& bootstrap_;
  BootstrapGroup seat_;
  Device& device_;
  NativeStreams streams_;
  std::vector<NcclQueue> queues_;
  bool left_ = false;
};

}  // namespace shardwright::exec
