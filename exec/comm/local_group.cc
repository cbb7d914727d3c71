// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_group.h"

#include <chrono>
#include <utility>

namespace shardwright::exec {

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
