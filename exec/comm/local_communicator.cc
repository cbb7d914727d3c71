// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_communicator.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "exec/communicator.h"
#include "exec/host/host_device.h"
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

LocalWorld::LocalWorld(const RankMesh& mesh)
    : mesh_(mesh), devices_(static_cast<std::size_t>(mesh.ranks)) {
  for (const CommGroup kind : kRankGroups) {
    for (std::int64_t rank = 0; rank < mesh.ranks; ++rank) {
      const std::vector<std::int64_t> members = mesh.members(kind, rank);
      if (members.front() != rank) continue;
      groups_[{kind, rank}] = std::make_unique<LocalGroup>(*this, static_cast<int>(members.size()));
    }
  }
}

LocalWorld::LocalWorld(int ranks, int shard_ranks)
    : LocalWorld(data_parallel_mesh(ranks, shard_ranks)) {}

LocalWorld::~LocalWorld() = default;

RankGroups LocalWorld::groups(int rank, Device& device, const OnWorld& on_world) {
  {
    const std::lock_guard lock(mutex_);
    devices_[static_cast<std::size_t>(rank)] = &device;
  }
  return make_groups(
      mesh_, rank, on_world,
      [&](CommGroup kind, const std::vector<std::int64_t>& members, int rank_in_group) {
        return std::make_unique<LocalCommunicator>(*groups_.at({kind, members.front()}),
                                                   rank_in_group, rank, device);
      });
}

void LocalWorld::abort(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  abort_locked(rank);
}

void LocalWorld::abort_locked(int rank) noexcept {
  aborted_ = true;
  if (failed_rank_ < 0) failed_rank_ = rank;
  changed_.notify_all();
}

bool LocalWorld::sees_failure() noexcept {
  for (int rank = 0; rank < ranks() && !aborted_; ++rank) {
    const Device* device = devices_[static_cast<std::size_t>(rank)];
    if (device != nullptr && device->has_failed()) abort_locked(rank);
  }
  return aborted_;
}

void LocalWorld::keep_error(int rank, std::exception_ptr error) noexcept {
  abort(rank);
  const std::lock_guard lock(mutex_);
  if (rank == failed_rank_ && !error_) error_ = std::move(error);
}

void LocalWorld::run(const std::function<void(int rank)>& body) {
  const auto run_one = [this, &body](int rank) {
    try {
      body(rank);
    } catch (...) {
      keep_error(rank, std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks()));
  for (int rank = 0; rank < ranks(); ++rank) {
    try {
      threads.emplace_back(run_one, rank);
    } catch (...) {  // no memory or process for it; those that run must not wait for it
      keep_error(rank, std::current_exception());
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (error_) std::rethrow_exception(error_);
}

LocalGroup::LocalGroup(LocalWorld& world, int ranks)
    : world_(world),
      members_(static_cast<std::size_t>(ranks)),
      boxes_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}

template <class Condition>
void LocalGroup::await(std::unique_lock<std::mutex>& lock, Condition condition) {
  world_.changed_.wait(lock, [&] { return condition() || world_.aborted_; });
  if (!condition()) throw Aborted();
}

void LocalGroup::barrier() {
  std::unique_lock lock(world_.mutex_);
  if (world_.aborted_) throw Aborted();
  const std::uint64_t mine = barriers_;
  if (++arrived_ == ranks()) {
    arrived_ = 0;
    ++barriers_;
    world_.changed_.notify_all();
    return;
  }
  await(lock, [&] { return barriers_ != mine; });
}

void LocalGroup::put(int from, int to, const Letter& letter) {
  std::unique_lock lock(world_.mutex_);
  Box& b = box(from, to);
  await(lock, [&] { return b.state == Box::State::kEmpty; });
  b.letter = letter;
  b.state = Box::State::kPut;
  world_.changed_.notify_all();
}

LocalGroup::Letter LocalGroup::take(int from, int to) {
  std::unique_lock lock(world_.mutex_);
  Box& b = box(from, to);
  await(lock, [&] { return b.state == Box::State::kPut; });
  return b.letter;
}

void LocalGroup::finish(int from, int to, const Event* done) {
  const std::lock_guard lock(world_.mutex_);
  Box& b = box(from, to);
  b.letter.done = done;
  b.state = Box::State::kFinished;
  world_.changed_.notify_all();
}

const Event* LocalGroup::collected(int from, int to) {
  std::unique_lock lock(world_.mutex_);
  Box& b = box(from, to);
  await(lock, [&] { return b.state == Box::State::kFinished; });
  b.state = Box::State::kEmpty;
  world_.changed_.notify_all();
  return b.letter.done;
}

void LocalGroup::post(const Channel& channel, Message message) {
  const std::lock_guard lock(world_.mutex_);
  messages_[channel].push_back(std::move(message));
  world_.changed_.notify_all();
}

LocalGroup::Message LocalGroup::fetch(const Channel& channel,
                                      const std::function<bool()>& gives_up) {
  constexpr std::chrono::milliseconds kLook{20};  // at what nobody tells of
  std::unique_lock lock(world_.mutex_);
  std::deque<Message>& waiting = messages_[channel];
  while (waiting.empty()) {
    if (gives_up() || world_.sees_failure()) throw Aborted();
    world_.changed_.wait_for(lock, kLook);
  }
  Message message = std::move(waiting.front());
  waiting.pop_front();
  return message;
}

void LocalGroup::join(int rank, const Event* ready, const Event* done) {
  const std::lock_guard lock(world_.mutex_);
  if (world_.aborted_) throw Aborted();
  members_[static_cast<std::size_t>(rank)] = {nullptr, ready, done};
  ++joined_;
}

void LocalGroup::leave() noexcept {
  std::unique_lock lock(world_.mutex_);
  const std::uint64_t mine = departures_;
  if (++left_ == joined_) {
    left_ = joined_ = 0;
    ++departures_;
    world_.changed_.notify_all();
    return;
  }
  world_.changed_.wait(lock, [&] { return departures_ != mine; });
}

void LocalGroup::abort(int rank) noexcept {
  world_.abort(rank);
}

}  // namespace shardwright::exec
