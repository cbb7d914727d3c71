// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_communicator.h"

#include <cstring>
#include <exception>

#include "exec/comm/local_group.h"
#include "exec/host/stream_clocks.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

LocalCommunicator::LocalCommunicator(LocalGroup& group, int rank, int world_rank, Device& device)
    : group_(group),
      rank_(rank),
      world_rank_(world_rank),
      device_(device),
      ready_(device.make_event()),
      done_(device.make_event()),
      sent_(device.make_event()) {
  for (int r = 0; r < group.ranks(); ++r) received_.push_back(device.make_event());
  group_.join(rank, ready_.get(), done_.get());
}

LocalCommunicator::~LocalCommunicator() {
  if (left_) return;
  device_.drain();
  leave();
}

int LocalCommunicator::size() const {
  return group_.ranks();
}

void LocalCommunicator::publish(StreamId stream, void* data) {
  device_.record(stream, *ready_);
  group_.data(rank_) = data;
  group_.barrier();
}

void LocalCommunicator::wait_for(StreamId stream, int rank) {
  if (rank != rank_) device_.wait(stream, group_.ready(rank));
}

void LocalCommunicator::finish(StreamId stream) {
  device_.record(stream, *done_);
  group_.barrier();
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) device_.wait(stream, group_.done(r));
  }
  // All that this stream waits for has been issued by now, so a host that waits here only waits for
  // the devices. Ranks that ran far ahead would fill the queue that they share on one GPU.
  if (size() > 1) device_.limit_run_ahead(stream);
}

void LocalCommunicator::fold(StreamId stream, DType dtype, std::int64_t first, Array out, bool adds,
                             SumOrder order) {
  std::vector<const void*> inputs;
  for (int r = 0; r < size(); ++r) {
    wait_for(stream, r);
    inputs.push_back(advance(group_.data(r), dtype, first));
  }
  if (out.size > 0) device_.fold(stream, inputs, dtype, out, adds, order);
}

void LocalCommunicator::all_gather(StreamId stream, Array mine, Array whole) {
  publish(stream, mine.data);
  for (int i = 0; i < size(); ++i) {
    // Starting with the own share keeps ranks from all reading the same one.
    const int r = (rank_ + i) % size();
    const Array to = share_of(whole, size(), r);
    const void* from = group_.data(r);
    wait_for(stream, r);
    if (from != to.data && to.size > 0) device_.copy(stream, to.data, from, to.bytes());
  }
  finish(stream);
}

void LocalCommunicator::reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array,
                                       SumOrder order) {
  publish(stream, whole.data);
  fold(stream, whole.dtype, share_begin(whole.size, size(), rank_), mine, adds, order);
  finish(stream);
}

void LocalCommunicator::all_reduce(StreamId stream, Array data, SumOrder order) {
  const Array mine = share_of(data, size(), rank_);
  reduce_scatter(stream, data, mine, false, {}, order);
  all_gather(stream, mine, data);
}

void LocalCommunicator::broadcast(StreamId stream, Array data, int root) {
  publish(stream, data.data);
  if (rank_ != root) {
    wait_for(stream, root);
    device_.copy(stream, data.data, group_.data(root), data.bytes());
  }
  finish(stream);
}

void LocalCommunicator::wait_in_order(StreamId stream, const Event& event) {
  if (device_.clocks() == nullptr) device_.wait(stream, event);
}

void LocalCommunicator::send(StreamId stream, Array data, int to) {
  device_.record(stream, *sent_);
  group_.put(rank_, to, {data.data, sent_.get(), nullptr});
  wait_in_order(stream, *group_.collected(rank_, to));
}

void LocalCommunicator::receive(StreamId stream, Array data, int from) {
  const LocalGroup::Letter letter = group_.take(from, rank_);
  wait_in_order(stream, *letter.ready);
  device_.copy(stream, data.data, letter.data, data.bytes());
  Event& received = *received_[static_cast<std::size_t>(from)];
  device_.record(stream, received);
  group_.finish(from, rank_, &received);
}

LocalParcel& LocalCommunicator::free_parcel(Bytes bytes) {
  for (const auto& parcel : parcels_) {
    if (parcel->bytes == bytes && parcel->is_free.exchange(false)) return *parcel;
  }
  LocalParcel& parcel = *parcels_.emplace_back(std::make_unique<LocalParcel>());
  parcel.memory = device_.allocate_shared(bytes);
  parcel.bytes = bytes;
  parcel.filled = device_.make_event();
  return parcel;
}

void LocalCommunicator::post_parcel(StreamId stream, const Array& data, int to, int channel) {
  LocalParcel& parcel = free_parcel(data.bytes());
  if (parcel.emptied != nullptr) device_.wait(stream, *parcel.emptied);
  device_.copy(stream, parcel.memory->data(), data.data, data.bytes());
  device_.record(stream, *parcel.filled);
  group_.post({rank_, to, channel}, {{}, 0, &parcel});
}

void LocalCommunicator::fetch_parcel(StreamId stream, const Array& data, LocalParcel& parcel) {
  SHARDWRIGHT_CHECK(parcel.bytes == data.bytes(), "a message of {} bytes for {}", parcel.bytes,
                    data.bytes());
  device_.wait(stream, *parcel.filled);
  device_.copy(stream, data.data, parcel.memory->data(), data.bytes());
  std::unique_ptr<Event>& emptied = emptied_[&parcel];
  if (!emptied) emptied = device_.make_event();
  device_.record(stream, *emptied);
  parcel.emptied = emptied.get();
  parcel.is_free = true;
  device_.limit_run_ahead(stream);
}

void LocalCommunicator::post(StreamId stream, Array data, int to, int channel) {
  if (!device_.shares_host_memory()) return post_parcel(stream, data, to, channel);
  device_.call(stream, [=, this] {
    const auto* bytes = static_cast<const std::byte*>(data.data);
    const StreamClocks* clocks = device_.clocks();
    group_.post(
        {rank_, to, channel},
        {{bytes, bytes + data.bytes()}, clocks ? clocks->end_of_operation(stream) : 0, nullptr});
  });
}

void LocalCommunicator::fetch(StreamId stream, Array data, int from, int channel) {
  const auto gives_up = [this] { return device_.has_failed(); };
  if (!device_.shares_host_memory()) {
    return fetch_parcel(stream, data, *group_.fetch({from, rank_, channel}, gives_up).parcel);
  }
  device_.call(stream, [=, this] {
    const LocalGroup::Message message = group_.fetch({from, rank_, channel}, gives_up);
    SHARDWRIGHT_CHECK(std::ssize(message.bytes) == data.bytes(), "a message of {} bytes for {}",
                      message.bytes.size(), data.bytes());
    std::memcpy(data.data, message.bytes.data(), message.bytes.size());
    if (StreamClocks* clocks = device_.clocks()) clocks->wait_until(stream, message.arrives_ns);
  });
}

void LocalCommunicator::fail() noexcept {
  group_.abort(world_rank_);
}

void LocalCommunicator::barrier() {
  group_.barrier();
}

void LocalCommunicator::exchange(std::span<const std::byte> mine, std::span<std::byte> all) {
  SHARDWRIGHT_CHECK(all.size() == mine.size() * static_cast<std::size_t>(size()),
                    "{} bytes from each of {} ranks into {}", mine.size(), size(), all.size());
  group_.data(rank_) = const_cast<std::byte*>(mine.data());
  group_.barrier();
  for (int r = 0; r < size(); ++r) {
    if (mine.empty()) break;
    std::memcpy(all.data() + static_cast<std::size_t>(r) * mine.size(), group_.data(r),
                mine.size());
  }
  group_.barrier();
}

void LocalCommunicator::leave() noexcept {
  if (left_) return;
  left_ = true;
  // A rank that is unwinding wakes the others, or they would wait for it in a collective.
  if (std::uncaught_exceptions() > 0) group_.abort(world_rank_);
  group_.leave();
}

}  // namespace shardwright::exec
