// SPDX-License-Identifier: Apache-2.0
// The collectives of one local rank. Sums are made in the order that is asked for, so they are the
// same bits as one rank's that adds the contributions in that order.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "exec/communicator.h"

namespace shardwright::exec {

class LocalGroup;
struct LocalParcel;

class LocalCommunicator final : public Communicator {
 public:
  /// `rank` in the group, `world_rank` for reports of failure.
  LocalCommunicator(LocalGroup& group, int rank, int world_rank, Device& device);
  ~LocalCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override;
  bool ordered() const override { return true; }

  void all_gather(StreamId stream, Array mine, Array whole) override;
  void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array scratch,
                      SumOrder order) override;
  void all_reduce(StreamId stream, Array data, SumOrder order) override;
  void broadcast(StreamId stream, Array data, int root) override;
  void send(StreamId stream, Array data, int to) override;
  void receive(StreamId stream, Array data, int from) override;
  void post(StreamId stream, Array data, int to, int channel) override;
  void fetch(StreamId stream, Array data, int from, int channel) override;
  void fail() noexcept override;
  void barrier() override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void leave() noexcept override;

 private:
  /// Shows `data` to all and meets them; afterwards everyone's data may be read behind their
  /// events.
  void publish(StreamId stream, void* data);
  /// Lets `stream` go on only when all ranks have read what they need.
  void finish(StreamId stream);
  void wait_for(StreamId stream, int rank);
  /// Of replicas that add up one after the other. Virtual clocks do not count that: what the sum
  /// lasts is said, and all replicas meet where it is shown to them.
  void wait_in_order(StreamId stream, const Event& event);
  /// out = (adds ? out : 0) + the parts [first, first + out.size) of everyone's published data.
  void fold(StreamId stream, DType dtype, std::int64_t first, Array out, bool adds, SumOrder order);
  /// Messages between devices whose memory the host cannot read go through pinned memory of it,
  /// which the plan does not count. The host of the receiver waits until its sender's has issued.
  void post_parcel(StreamId stream, const Array& data, int to, int channel);
  void fetch_parcel(StreamId stream, const Array& data, LocalParcel& parcel);
  LocalParcel& free_parcel(Bytes bytes);

  LocalGroup& group_;
  int rank_;
  int world_rank_;
  Device& device_;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> done_;
  std::unique_ptr<Event> sent_;
  std::vector<std::unique_ptr<Event>> received_;  // by sender
  std::vector<std::unique_ptr<LocalParcel>> parcels_;
  std::map<const LocalParcel*, std::unique_ptr<Event>> emptied_;  // of other ranks
  bool left_ = false;
};

}  // namespace shardwright::exec
