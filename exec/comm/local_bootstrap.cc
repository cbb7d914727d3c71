// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_bootstrap.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>

#include "exec/communicator.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

class LocalBootstrapRoom::Seat final : public Bootstrap {
 public:
  Seat(LocalBootstrapRoom& room, int rank) : room_(room), rank_(rank) {}
  int rank() const override { return rank_; }
  int ranks() const override { return room_.ranks_; }

  void exchange(const BootstrapGroup& group, std::span<const std::byte> mine,
                std::span<std::byte> all) override {
    const auto places = static_cast<std::size_t>(group.places);
    SHARDWRIGHT_CHECK(all.size() == mine.size() * places, "{} bytes from each of {} ranks into {}",
                      mine.size(), places, all.size());
    std::unique_lock lock(room_.mutex_);
    const auto key = std::pair(group.channel, next_[group.channel]++);
    Gathering& gathering = room_.gatherings_[key];
    gathering.parts.resize(places);
    gathering.parts[static_cast<std::size_t>(group.place)].assign(mine.begin(), mine.end());
    ++gathering.arrived;
    room_.changed_.notify_all();
    room_.changed_.wait(lock, [&] { return gathering.arrived == group.places || room_.failure_; });
    if (gathering.arrived < group.places) throw Aborted();
    auto out = all.begin();
    for (const std::vector<std::byte>& part : gathering.parts) {
      SHARDWRIGHT_CHECK(part.size() == mine.size(), "{} and {} bytes in one exchange", part.size(),
                        mine.size());
      out = std::copy(part.begin(), part.end(), out);
    }
    if (++gathering.taken == group.places) room_.gatherings_.erase(key);
  }

  void fail(ExitCode code, const std::string& what) noexcept override {
    const std::lock_guard lock(room_.mutex_);
    if (!room_.failure_) room_.failure_ = RankFailure{rank_, code, what};
    room_.changed_.notify_all();
  }
  std::optional<RankFailure> failure() const override {
    const std::lock_guard lock(room_.mutex_);
    return room_.failure_;
  }

 private:
  LocalBootstrapRoom& room_;
  int rank_;
  std::map<std::uint32_t, std::uint64_t> next_;
};

void LocalBootstrapRoom::run(const std::function<void(Bootstrap& bootstrap)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks_));
  const auto run_one = [this, &body, &errors](int rank) {
    Seat seat(*this, rank);
    try {
      run_rank(seat, [&] { body(seat); });
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    try {
      threads.emplace_back(run_one, rank);
    } catch (const std::system_error&) {  // those that run must not wait for it
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      Seat(*this, rank).fail(ExitCode::kFailed, "no thread could be started for it");
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace shardwright::exec
