// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_communicator.h"

#include <atomic>
#include <chrono>
#include <compare>
#include <cstring>
#include <deque>
#include <exception>
#include <utility>

#include "exec/communicator.h"
#include "exec/host/host_device.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

// A group of local ranks: the table of what they published, barriers, and letter boxes for pairs.

/// Where a message of devices that the host cannot read lies until it is taken.
struct LocalParcel {
  std::unique_ptr<Allocation> memory;  // of the host, pinned
  Bytes bytes = 0;
  std::unique_ptr<Event> filled;
  const Event* emptied = nullptr;    // the receiver's; null: new
  std::atomic<bool> is_free{false};  // to be filled behind that
};

class LocalGroup {
 public:
  LocalGroup(LocalWorld& world, int ranks)
      : world_(world),
        members_(static_cast<std::size_t>(ranks)),
        boxes_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}

  /// What a rank sends to another one.
  struct Letter {
    const void* data = nullptr;
    const Event* ready = nullptr;  // when the data are there
    const Event* done = nullptr;   // when they have been read
  };

  int ranks() const { return static_cast<int>(members_.size()); }
  /// Where a rank's data of the current collective are: written before its first barrier, read
  /// before its second.
  void*& data(int rank) { return members_[static_cast<std::size_t>(rank)].data; }
  /// When a rank's data are there: recorded before the first barrier, read before the second.
  const Event& ready(int rank) const { return *members_[static_cast<std::size_t>(rank)].ready; }
  /// When a rank has read what it needs: recorded between the barriers, read after the second. The
  /// next collective's first barrier comes before it is recorded again.
  const Event& done(int rank) const { return *members_[static_cast<std::size_t>(rank)].done; }

  /// Returns when all ranks have called it; throws Aborted when that cannot happen any more.
  void barrier() {
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

  /// A letter from one rank to another: put() by the sender, then take() and finish() by the
  /// receiver, then collected() by the sender.
  void put(int from, int to, const Letter& letter) {
    std::unique_lock lock(world_.mutex_);
    Box& b = box(from, to);
    await(lock, [&] { return b.state == Box::State::kEmpty; });
    b.letter = letter;
    b.state = Box::State::kPut;
    world_.changed_.notify_all();
  }

  Letter take(int from, int to) {
    std::unique_lock lock(world_.mutex_);
    Box& b = box(from, to);
    await(lock, [&] { return b.state == Box::State::kPut; });
    return b.letter;
  }

  void finish(int from, int to, const Event* done) {
    const std::lock_guard lock(world_.mutex_);
    Box& b = box(from, to);
    b.letter.done = done;
    b.state = Box::State::kFinished;
    world_.changed_.notify_all();
  }

  const Event* collected(int from, int to) {
    std::unique_lock lock(world_.mutex_);
    Box& b = box(from, to);
    await(lock, [&] { return b.state == Box::State::kFinished; });
    b.state = Box::State::kEmpty;
    world_.changed_.notify_all();
    return b.letter.done;
  }

  /// Messages from a rank to another one on a channel, in order; what is sent waits here.
  struct Channel {
    int from = 0, to = 0, number = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes what this compares with for one
    auto operator<=>(const Channel&) const = default;
  };
  struct Message {
    std::vector<std::byte> bytes;
    Nanoseconds arrives_ns = 0;     // where streams have clocks
    LocalParcel* parcel = nullptr;  // in place of the bytes
  };
  void post(const Channel& channel, Message message) {
    const std::lock_guard lock(world_.mutex_);
    messages_[channel].push_back(std::move(message));
    world_.changed_.notify_all();
  }

  /// Throws Aborted when none can come any more, or who waits gives up.
  Message fetch(const Channel& channel, const std::function<bool()>& gives_up) {
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

  void join(int rank, const Event* ready, const Event* done) {
    const std::lock_guard lock(world_.mutex_);
    if (world_.aborted_) throw Aborted();
    members_[static_cast<std::size_t>(rank)] = {nullptr, ready, done};
    ++joined_;
  }

  /// Returns when all that joined have left. After a failure that includes ranks that are still
  /// unwinding.
  void leave() noexcept {
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

  void abort(int rank) noexcept { world_.abort(rank); }

 private:
  struct Member {
    void* data = nullptr;
    const Event* ready = nullptr;
    const Event* done = nullptr;
  };
  struct Box {
    enum class State { kEmpty, kPut, kFinished };
    Letter letter;
    State state = State::kEmpty;
  };
  Box& box(int from, int to) {
    return boxes_[static_cast<std::size_t>(from) * members_.size() + static_cast<std::size_t>(to)];
  }
  template <class Condition>
  void await(std::unique_lock<std::mutex>& lock, Condition condition) {
    world_.changed_.wait(lock, [&] { return condition() || world_.aborted_; });
    if (!condition()) throw Aborted();
  }

  LocalWorld& world_;
  std::vector<Member> members_;
  std::vector<Box> boxes_;
  std::map<Channel, std::deque<Message>> messages_;
  int arrived_ = 0;
  std::uint64_t barriers_ = 0;
  int joined_ = 0;
  int left_ = 0;
  std::uint64_t departures_ = 0;
};

namespace {

class LocalCommunicator final : public Communicator {
 public:
  /// `rank` in the group, `world_rank` for reports of failure.
  LocalCommunicator(LocalGroup& group, int rank, int world_rank, Device& device)
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

  ~LocalCommunicator() override {
    if (left_) return;
    device_.drain();
    leave();
  }

  int rank() const override { return rank_; }
  int size() const override { return group_.ranks(); }

  bool ordered() const override { return true; }

  void all_gather(StreamId stream, Array mine, Array whole) override {
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

  void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array,
                      SumOrder order) override {
    publish(stream, whole.data);
    fold(stream, whole.dtype, share_begin(whole.size, size(), rank_), mine, adds, order);
    finish(stream);
  }

  void all_reduce(StreamId stream, Array data, SumOrder order) override {
    const Array mine = share_of(data, size(), rank_);
    reduce_scatter(stream, data, mine, false, {}, order);
    all_gather(stream, mine, data);
  }

  void broadcast(StreamId stream, Array data, int root) override {
    publish(stream, data.data);
    if (rank_ != root) {
      wait_for(stream, root);
      device_.copy(stream, data.data, group_.data(root), data.bytes());
    }
    finish(stream);
  }

  void send(StreamId stream, Array data, int to) override {
    device_.record(stream, *sent_);
    group_.put(rank_, to, {data.data, sent_.get(), nullptr});
    wait_in_order(stream, *group_.collected(rank_, to));
  }

  void receive(StreamId stream, Array data, int from) override {
    const LocalGroup::Letter letter = group_.take(from, rank_);
    wait_in_order(stream, *letter.ready);
    device_.copy(stream, data.data, letter.data, data.bytes());
    Event& received = *received_[static_cast<std::size_t>(from)];
    device_.record(stream, received);
    group_.finish(from, rank_, &received);
  }

  void post(StreamId stream, Array data, int to, int channel) override {
    if (!device_.shares_host_memory()) return post_parcel(stream, data, to, channel);
    device_.call(stream, [=, this] {
      const auto* bytes = static_cast<const std::byte*>(data.data);
      const StreamClocks* clocks = device_.clocks();
      group_.post(
          {rank_, to, channel},
          {{bytes, bytes + data.bytes()}, clocks ? clocks->end_of_operation(stream) : 0, nullptr});
    });
  }

  void fetch(StreamId stream, Array data, int from, int channel) override {
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

  void fail() noexcept override { group_.abort(world_rank_); }

  void barrier() override { group_.barrier(); }

  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
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

  void leave() noexcept override {
    if (left_) return;
    left_ = true;
    // A rank that is unwinding wakes the others, or they would wait for it in a collective.
    if (std::uncaught_exceptions() > 0) group_.abort(world_rank_);
    group_.leave();
  }

 private:
  /// Shows `data` to all and meets them; afterwards everyone's data may be read behind their
  /// events.
  void publish(StreamId stream, void* data) {
    device_.record(stream, *ready_);
    group_.data(rank_) = data;
    group_.barrier();
  }

  /// Lets `stream` go on only when all ranks have read what they need.
  void finish(StreamId stream) {
    device_.record(stream, *done_);
    group_.barrier();
    for (int r = 0; r < size(); ++r) {
      if (r != rank_) device_.wait(stream, group_.done(r));
    }
    // All that this stream waits for has been issued by now, so a host that waits here only waits
    // for the devices. Ranks that ran far ahead would fill the queue that they share on one GPU.
    if (size() > 1) device_.limit_run_ahead(stream);
  }

  void wait_for(StreamId stream, int rank) {
    if (rank != rank_) device_.wait(stream, group_.ready(rank));
  }

  /// Of replicas that add up one after the other. Virtual clocks do not count that: what the sum
  /// lasts is said, and all replicas meet where it is shown to them.
  void wait_in_order(StreamId stream, const Event& event) {
    if (device_.clocks() == nullptr) device_.wait(stream, event);
  }

  /// out = (adds ? out : 0) + the parts [first, first + out.size) of everyone's published data.
  void fold(StreamId stream, DType dtype, std::int64_t first, Array out, bool adds,
            SumOrder order) {
    std::vector<const void*> inputs;
    for (int r = 0; r < size(); ++r) {
      wait_for(stream, r);
      inputs.push_back(advance(group_.data(r), dtype, first));
    }
    if (out.size > 0) device_.fold(stream, inputs, dtype, out, adds, order);
  }

  /// Messages between devices whose memory the host cannot read go through pinned memory of it,
  /// which the plan does not count. The host of the receiver waits until its sender's has issued.
  void post_parcel(StreamId stream, const Array& data, int to, int channel) {
    LocalParcel& parcel = free_parcel(data.bytes());
    if (parcel.emptied != nullptr) device_.wait(stream, *parcel.emptied);
    device_.copy(stream, parcel.memory->data(), data.data, data.bytes());
    device_.record(stream, *parcel.filled);
    group_.post({rank_, to, channel}, {{}, 0, &parcel});
  }

  void fetch_parcel(StreamId stream, const Array& data, LocalParcel& parcel) {
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

  LocalParcel& free_parcel(Bytes bytes) {
    for (const auto& parcel : parcels_) {
      if (parcel->bytes == bytes && parcel->is_free.exchange(false)) return *parcel;
    }
    LocalParcel& parcel = *parcels_.emplace_back(std::make_unique<LocalParcel>());
    parcel.memory = device_.allocate_shared(bytes);
    parcel.bytes = bytes;
    parcel.filled = device_.make_event();
    return parcel;
  }

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

}  // namespace

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
  run_on_threads(ranks(), body,
                 [this](int rank, bool) { keep_error(rank, std::current_exception()); });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace shardwright::exec
