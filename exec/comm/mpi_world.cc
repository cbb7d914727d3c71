// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/mpi_world.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "exec/communicator.h"
#include "exec/host/host_device.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;
constexpr Seconds kLeastGrace = 1s, kMostGrace = 10s, kTelling = 1s;

std::string absence(const std::vector<int>& absent, double timeout_s) {
  if (absent.empty()) {
    return fmt::format(
        "all ranks wait for each other for {:g} s (--rank-timeout): a message is lost, or ranks do "
        "not do the same",
        timeout_s);
  }
  return fmt::format(
      "rank{} {} {} not come within {:g} s (--rank-timeout): stopped, waiting for a disk, or too "
      "slow",
      absent.size() == 1 ? "" : "s", fmt::join(absent, ", "), absent.size() == 1 ? "has" : "have",
      timeout_s);
}

}  // namespace

// Who is there, asked when a rank does not come.
//
// MPI tells of processes that die (the launcher ends the job), not of one that hangs: it is
// stopped, swapped out, or waits for a disk that is gone; the others would wait for it for ever. So
// a rank that has waited for the deadline says to all others that it is there, as does every
// waiting rank that hears of it. Who does not answer is who everybody waits for, and the job ends
// with a sentence that names it.

class MpiHandshake {
 public:
  /// All ranks call it together. `timeout_s` is what a rank may wait for the others.
  explicit MpiHandshake(double timeout_s) : timeout_(timeout_s) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    int ranks = 1;
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &ranks);
    present_.resize(static_cast<std::size_t>(ranks));
    present_[static_cast<std::size_t>(rank_)] = true;
  }

  /// All ranks of a job that ends well call it together.
  void end() { MPI_Comm_free(&comm_); }

  /// Of a rank that has waited for so long: answers who asks. Throws Error when it is too long,
  /// naming the ranks that do not come. MPI may be called.
  void attend(Seconds waited) {
    const std::lock_guard lock(mutex_);
    hear();
    if (waited > timeout_) ask_all();
  }

  /// This rank has failed and waits for nobody any more. Any thread may say and ask it.
  void give_up() noexcept { gives_up_.store(true, std::memory_order_relaxed); }
  bool gives_up() const noexcept { return gives_up_.load(std::memory_order_relaxed); }

  /// How often a rank that waits should attend.
  static constexpr Seconds kInterval{0.1};

 private:
  void say_present() {
    if (said_) return;
    said_ = true;
    // An empty message is sent at once, so its request is freed and nobody waits for a hung rank.
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker)
    for (int rank = 0; rank < static_cast<int>(present_.size()); ++rank) {
      if (rank == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(nullptr, 0, MPI_BYTE, rank, 0, comm_, &request);
      MPI_Request_free(&request);
    }
  }

  void hear() {
    while (true) {
      int found = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &found, &status) != MPI_SUCCESS || found == 0)
        return;
      MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, 0, comm_, MPI_STATUS_IGNORE);
      present_[static_cast<std::size_t>(status.MPI_SOURCE)] = true;
      say_present();
    }
  }

  void ask_all() {
    say_present();
    const auto grace = std::clamp(timeout_ / 4, kLeastGrace, kMostGrace);
    const auto until = std::chrono::steady_clock::now() + grace;
    std::vector<int> absent;
    do {
      std::this_thread::sleep_for(10ms);
      hear();
      absent.clear();
      for (std::size_t rank = 0; rank < present_.size(); ++rank) {
        if (!present_[rank]) absent.push_back(static_cast<int>(rank));
      }
    } while (!absent.empty() && std::chrono::steady_clock::now() < until);
    // One rank tells; the others only where it does not end the job.
    const auto first = std::find(present_.begin(), present_.end(), true) - present_.begin();
    if (rank_ != first) std::this_thread::sleep_for(kTelling);
    throw Error(absence(absent, timeout_.count()), ExitCode::kFailed);
  }

  std::mutex mutex_;
  Seconds timeout_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::vector<bool> present_;
  bool said_ = false;
  std::atomic<bool> gives_up_{false};
};

namespace {

constexpr int kReduceTag = 1;
constexpr int kChainTag = 2;
constexpr int kFirstChannelTag = 16;
// Elements that all ranks together send to one at a time, so that a reduction needs little memory.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

/// Taken by every call where the library does not let threads call at the same time.
std::mutex& calls() {
  static std::mutex mutex;
  return mutex;
}

MPI_Datatype type_of(DType dtype) {
  return dtype == DType::kFp32 ? MPI_FLOAT : MPI_UINT16_T;
}

int count_of(std::int64_t elements) {
  if (elements > std::numeric_limits<int>::max()) {
    throw Error(
        fmt::format("{} elements in one MPI message, expected fewer than 2^31: use more "
                    "ranks or another communicator",
                    elements));
  }
  return static_cast<int>(elements);
}

/// Throws Error with the library's own words when `status` is not success.
void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw Error(
      fmt::format("{} failed: {}", call, std::string(text, static_cast<std::size_t>(length))),
      ExitCode::kFailed);
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(int color, bool serialized, Device& device, MpiHandshake& handshake)
      : serialized_(serialized), device_(device), handshake_(handshake) {
    int world_rank = 0;
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_split(MPI_COMM_WORLD, color, world_rank, &comm_), "MPI_Comm_split");
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }

  ~MpiCommunicator() override {
    device_.drain();
    // Freeing is a collective; a rank that fails must not wait for the others in it.
    if (std::uncaught_exceptions() > 0) return;
    wait_for_posted();
    MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool ordered() const override { return true; }

  void all_gather(StreamId stream, Array mine, Array whole) override {
    device_.call(stream, [=, this] { gather_now(mine, whole); });
  }

  void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array,
                      SumOrder order) override {
    device_.call(stream, [=, this] { reduce_now(whole, mine, adds, order); });
  }

  void all_reduce(StreamId stream, Array data, SumOrder order) override {
    device_.call(stream, [=, this] {
      const Array mine = share_of(data, size_, rank_);
      reduce_now(data, mine, false, order);
      gather_now(mine, data);
    });
  }

  void broadcast(StreamId stream, Array data, int root) override {
    enqueue(stream, "MPI_Ibcast", [=, this](MPI_Request* request) {
      return MPI_Ibcast(data.data, count_of(data.size), type_of(data.dtype), root, comm_, request);
    });
  }
  void send(StreamId stream, Array data, int to) override {
    enqueue(stream, "MPI_Isend", [=, this](MPI_Request* request) {
      return MPI_Isend(data.data, count_of(data.size), type_of(data.dtype), to, kChainTag, comm_,
                       request);
    });
  }
  void receive(StreamId stream, Array data, int from) override {
    enqueue(stream, "MPI_Irecv", [=, this](MPI_Request* request) {
      return MPI_Irecv(data.data, count_of(data.size), type_of(data.dtype), from, kChainTag, comm_,
                       request);
    });
  }
  void post(StreamId stream, Array data, int to, int channel) override {
    device_.call(stream, [=, this] {
      test_posted();
      const auto* bytes = static_cast<const std::byte*>(data.data);
      std::unique_lock<std::mutex> turn(calls(), std::defer_lock);
      if (serialized_) turn.lock();
      const std::lock_guard lock(posted_mutex_);
      Posted& one = posted_.emplace_back();
      one.message.assign(bytes, bytes + data.bytes());
      check_mpi(MPI_Isend(one.message.data(), count_of(std::ssize(one.message)), MPI_BYTE, to,
                          kFirstChannelTag + channel, comm_, &one.request),
                "MPI_Isend");
    });
  }

  void fetch(StreamId stream, Array data, int from, int channel) override {
    device_.call(stream, [=, this] {
      test_posted();
      complete("MPI_Irecv", 1, [&](MPI_Request* request) {
        return MPI_Irecv(data.data, count_of(data.bytes()), MPI_BYTE, from,
                         kFirstChannelTag + channel, comm_, request);
      });
    });
  }

  void barrier() override {
    complete("MPI_Ibarrier", 1, [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
  }

  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const int bytes = count_of(std::ssize(mine));
    complete("MPI_Iallgather", 1, [&](MPI_Request* request) {
      return MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_,
                            request);
    });
  }

  void fail() noexcept override { handshake_.give_up(); }
  void leave() noexcept override {}

 private:
  /// Starts requests with start(requests) and polls until all are complete. Throws Aborted when
  /// this rank has failed; what the requests write to must stay then.
  void complete(const char* call, std::size_t count,
                const std::function<int(MPI_Request* requests)>& start) const {
    std::unique_lock<std::mutex> turn(calls(), std::defer_lock);
    std::vector<MPI_Request> requests(count, MPI_REQUEST_NULL);
    if (serialized_) turn.lock();
    check_mpi(start(requests.data()), call);
    auto attended = std::chrono::steady_clock::now();
    Seconds waited{0};
    constexpr std::uint32_t kPollsPerLook = 256;  // at the clock
    // A longer gap between looks means that this rank did not run, as in a job that is suspended.
    constexpr Seconds kMostGap{1};
    for (std::uint32_t polls = 1;; ++polls) {
      int done = 0;
      check_mpi(MPI_Testall(static_cast<int>(count), requests.data(), &done, MPI_STATUSES_IGNORE),
                call);
      if (done != 0) return;
      if (polls % kPollsPerLook == 0) {
        const auto now = std::chrono::steady_clock::now();
        if (now - attended >= MpiHandshake::kInterval) {
          waited += std::min<Seconds>(now - attended, kMostGap);
          attended = now;
          handshake_.attend(waited);
        }
      }
      // Others may never come to this, and the job ends when this rank has.
      if (handshake_.gives_up() || device_.has_failed()) throw Aborted();
      if (serialized_) turn.unlock();
      std::this_thread::yield();
      if (serialized_) turn.lock();
    }
  }

  /// The same of one request, when the stream gets there.
  void enqueue(StreamId stream, const char* call, std::function<int(MPI_Request* request)> start) {
    device_.call(stream, [=, this] { complete(call, 1, start); });
  }

  void gather_now(const Array& mine, const Array& whole) const {
    std::vector<int> counts, places;
    for (int r = 0; r < size_; ++r) {
      const std::int64_t begin = share_begin(whole.size, size_, r);
      places.push_back(count_of(begin));
      counts.push_back(count_of(share_begin(whole.size, size_, r + 1) - begin));
    }
    const MPI_Datatype type = type_of(whole.dtype);
    const bool in_place = mine.data == share_of(whole, size_, rank_).data;
    complete("MPI_Iallgatherv", 1, [&](MPI_Request* request) {
      return MPI_Iallgatherv(in_place ? MPI_IN_PLACE : mine.data,
                             in_place ? 0 : count_of(mine.size), type, whole.data, counts.data(),
                             places.data(), type, comm_, request);
    });
  }

  void reduce_now(const Array& whole, const Array& mine, bool adds, SumOrder order) {
    const std::int64_t piece = std::max<std::int64_t>(1024, kPieceElements / size_);
    const std::int64_t largest = (whole.size + size_ - 1) / size_;
    const MPI_Datatype type = type_of(whole.dtype);
    const auto width = static_cast<std::size_t>(bytes_of(whole.dtype));
    const auto peers = static_cast<std::size_t>(size_);
    std::vector<std::byte> received(peers * static_cast<std::size_t>(std::min(piece, largest)) *
                                    width);
    /// The part of rank r's share that belongs to the round beginning at `first`.
    const auto part = [&](int r, std::int64_t first) {
      const Array share = share_of(whole, size_, r);
      const std::int64_t begin = std::min(first, share.size);
      return share.part(begin, std::min(share.size - begin, piece));
    };
    try {
      for (std::int64_t first = 0; first < largest; first += piece) {
        const Array own = part(rank_, first);
        std::vector<const void*> inputs(peers);
        const auto place = [&](int r) {
          return received.data() +
                 static_cast<std::size_t>(r) * static_cast<std::size_t>(own.size) * width;
        };
        complete("MPI_Isend", 2 * peers, [&](MPI_Request* requests) {
          for (int r = 0; r < size_; ++r) {
            const auto index = static_cast<std::size_t>(r);
            inputs[index] = r == rank_ ? own.data : place(r);
            if (r == rank_) continue;
            int status = MPI_Irecv(place(r), count_of(own.size), type, r, kReduceTag, comm_,
                                   &requests[2 * index]);
            if (status != MPI_SUCCESS) return status;
            const Array theirs = part(r, first);
            status = MPI_Isend(theirs.data, count_of(theirs.size), type, r, kReduceTag, comm_,
                               &requests[2 * index + 1]);
            if (status != MPI_SUCCESS) return status;
          }
          return MPI_SUCCESS;
        });
        fold_now(one_thread_, inputs, whole.dtype,
                 mine.part(first < mine.size ? first : mine.size, own.size), adds, order);
      }
    } catch (const Aborted&) {
      new std::vector<std::byte>(std::move(received));  // until the process ends
      throw;
    }
  }

  /// What was posted and may not have left yet.
  struct Posted {
    std::vector<std::byte> message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  /// Forgets what has left; waits for all of it.
  void test_posted() {
    std::unique_lock<std::mutex> turn(calls(), std::defer_lock);
    if (serialized_) turn.lock();
    const std::lock_guard lock(posted_mutex_);
    for (auto at = posted_.begin(); at != posted_.end();) {
      int done = 0;
      check_mpi(MPI_Test(&at->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      at = done != 0 ? posted_.erase(at) : std::next(at);
    }
  }

  void wait_for_posted() noexcept {
    for (Posted& one : posted_) MPI_Wait(&one.request, MPI_STATUS_IGNORE);
    posted_.clear();
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::mutex posted_mutex_;
  std::list<Posted> posted_;
  kernels::host::Parallel one_thread_{1};
  bool serialized_;
  Device& device_;
  MpiHandshake& handshake_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

MpiWorld::MpiWorld(bool streams_are_threads, double rank_timeout_s) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  serialized_ = provided < MPI_THREAD_MULTIPLE;
  if (streams_are_threads && provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    throw Error("the MPI library lets only one thread call it, expected streams to be inline",
                ExitCode::kMissingDevice);
  }
  handshake_ = std::make_unique<MpiHandshake>(rank_timeout_s);
}

MpiWorld::~MpiWorld() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  if (handshake_ != nullptr) handshake_->end();
  MPI_Finalize();
}

RankGroups MpiWorld::groups(const RankMesh& mesh, Device& device, const OnWorld& on_world) {
  return make_groups(mesh, rank_, on_world,
                     [&](CommGroup, const std::vector<std::int64_t>& members, int) {
                       return std::make_unique<MpiCommunicator>(static_cast<int>(members.front()),
                                                                serialized_, device, *handshake_);
                     });
}

void MpiWorld::run(const std::function<void()>& body) {
  const auto end_job = [&](const char* what, ExitCode code) {
    fmt::print(stderr, "rank {} of {}: {}\n", rank_, ranks_, one_line(what));
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  };
  try {
    body();
  } catch (const Error& error) {
    end_job(error.what(), error.code());
  } catch (const std::exception& error) {
    end_job(error.what(), ExitCode::kFailed);
  }
}

}  // namespace shardwright::exec
