// SPDX-License-Identifier: Apache-2.0
// The kernels of the fake NCCL: tasks of streams that wait for other ranks as the real ones do.
#include <cstring>

#include "tests/exec_nccl/fake_nccl_state.h"

namespace shardwright::testing::nccl {

namespace {

using Lock = std::unique_lock<std::mutex>;

/// Calls of one launch: one, or those of a group.
struct Kernel {
  int world_rank = 0;
  std::uint64_t number = 0;  // among the rank's launches
  std::vector<Work> works;
  std::map<std::shared_ptr<Seat>, std::uint64_t> turns;  // in the order of each communicator
  bool hangs = false;
};

/// What a thread has called since ncclGroupStart.
struct OpenGroup {
  int depth = 0;
  std::vector<Comm*> comms;
  FakeStream* stream = nullptr;
  Kernel kernel;
};
thread_local OpenGroup open_group;

/// Waits in the task until `ready`; false when one of its ranks was aborted.
template <class Ready>
bool await(Lock& lock, const Kernel& kernel, Ready&& ready) {
  const auto aborted = [&] {
    for (const auto& [seat, turn] : kernel.turns) {
      if (seat->aborted) return true;
    }
    return false;
  };
  state().changed.wait(lock, [&] { return aborted() || ready(); });
  return !aborted();
}

Gathering& gathering_of(const Work& work) {
  return work.seat->clique->gatherings[{work.pair.first, work.pair.second, work.number}];
}

bool is_message(const Work& work) {
  return work.pair != kAll;
}

/// A kernel begins behind the one before on each of its communicators; strictly, behind all that
/// its rank has launched before.
bool begin(Lock& lock, const Kernel& kernel) {
  State& s = state();
  Launches& launches = s.launches[kernel.world_rank];
  const auto is_its_turn = [&] {
    if (s.options.starts_in_order && launches.started < kernel.number) return false;
    for (const auto& [seat, turn] : kernel.turns) {
      if (seat->ended < turn) return false;
    }
    return true;
  };
  if (!await(lock, kernel, is_its_turn)) return false;
  ++launches.started;
  for (const Work& work : kernel.works) {
    if (work.from != nullptr) gathering_of(work).from[work.seat->rank] = work.from;
  }
  s.changed.notify_all();
  return true;
}

/// What others show, as soon as they do.
bool take(Lock& lock, const Kernel& kernel, Work& work) {
  Gathering& gathering = gathering_of(work);
  const int needed = is_message(work) ? 1 : work.seat->clique->ranks;
  if (is_message(work) && work.from != nullptr) return true;  // who sends takes nothing
  if (!await(lock, kernel, [&] { return std::ssize(gathering.from) == needed; })) return false;
  work.made = work.make(gathering.from);
  ++gathering.read;
  state().changed.notify_all();
  return true;
}

/// Memory that others read stays as it is until they have: a send ends with its receive.
bool end(Lock& lock, const Kernel& kernel, Work& work) {
  const Gathering& gathering = gathering_of(work);
  const int readers = is_message(work) ? 1 : work.seat->clique->ranks;
  if (!await(lock, kernel, [&] { return gathering.read >= readers; })) return false;
  if (!work.made.empty()) std::memcpy(work.to, work.made.data(), work.made.size());
  return true;
}

void run(Kernel& kernel) {
  Lock lock(state().mutex);
  if (kernel.hangs) {
    await(lock, kernel, [] { return false; });
    return;
  }
  bool goes_on = begin(lock, kernel);
  for (Work& work : kernel.works) goes_on = goes_on && take(lock, kernel, work);
  for (Work& work : kernel.works) goes_on = goes_on && end(lock, kernel, work);
  // A rank that is aborted takes its memory away with it, so nobody may read it from then on.
  if (!goes_on) {
    for (const Work& work : kernel.works) {
      if (work.from != nullptr) gathering_of(work).from.erase(work.seat->rank);
    }
  }
  for (const auto& [seat, turn] : kernel.turns) seat->ended = turn + 1;
  state().changed.notify_all();
}

/// Under the lock. What is launched is put on the stream without it.
std::function<void()> launch(Kernel kernel, FakeStream* stream) {
  kernel.number = state().launches[kernel.world_rank].launched++;
  for (const Work& work : kernel.works) {
    if (!kernel.turns.contains(work.seat)) kernel.turns[work.seat] = work.seat->launched++;
  }
  return [stream, kernel = std::make_shared<Kernel>(std::move(kernel))] {
    stream->device->call(stream->id, [kernel] { run(*kernel); });
  };
}

/// Whether this call of the rank is one that a test lets fail or hang.
bool disturb(Comm& comm, const State& s, std::int64_t calls) {
  if (comm.world_rank == s.options.failing_rank && calls >= s.options.failing_collective)
    comm.failure = s.options.failure;
  const bool is_stuck =
      comm.world_rank == s.options.stuck_rank && calls >= s.options.stuck_collective;
  return comm.failure != ncclSuccess || is_stuck;
}

}  // namespace

State& state() {
  static State instance;
  return instance;
}

std::size_t bytes_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}

ncclResult_t enqueue(Comm& comm, NcclCall call, cudaStream_t native, Work work) {
  auto* stream = reinterpret_cast<FakeStream*>(native);
  Lock lock(state().mutex);
  State& s = state();
  work.seat = comm.seat;
  work.number = comm.next[work.pair]++;
  call.comm = comm.seat->clique->name;
  call.rank = comm.seat->rank;
  call.ranks = comm.seat->clique->ranks;
  call.world_rank = comm.world_rank;
  call.stream = stream->id;
  std::vector<NcclCall>& log = s.calls[comm.world_rank];
  const bool hangs = disturb(comm, s, std::ssize(log));
  log.push_back(std::move(call));
  if (is_message(work) && s.options.polls > 0) {
    comm.seat->clique->reached[work.pair].insert(comm.seat->rank);
    comm.connecting.insert(work.pair);
  }
  if (open_group.depth > 0) {
    if (open_group.stream != nullptr && open_group.stream != stream) return ncclInvalidUsage;
    open_group.stream = stream;
    open_group.comms.push_back(&comm);
    open_group.kernel.world_rank = comm.world_rank;
    open_group.kernel.hangs = open_group.kernel.hangs || hangs;
    open_group.kernel.works.push_back(std::move(work));
    return ncclInProgress;
  }
  Kernel kernel{comm.world_rank, 0, {}, {}, hangs};
  kernel.works.push_back(std::move(work));
  std::function<void()> put = launch(std::move(kernel), stream);
  if (s.options.polls == 0) {
    lock.unlock();
    put();
    return ncclSuccess;
  }
  comm.pending.push_back(std::move(put));
  comm.polls = s.options.polls;
  return ncclInProgress;
}

ncclResult_t start_group() {
  ++open_group.depth;
  return ncclSuccess;
}

/// The group is one kernel, which the last of its communicators asks for again.
ncclResult_t end_group() {
  if (--open_group.depth > 0) return ncclSuccess;
  OpenGroup group = std::exchange(open_group, {});
  if (group.comms.empty()) return ncclSuccess;
  const std::lock_guard lock(state().mutex);
  group.comms.back()->pending.push_back(launch(std::move(group.kernel), group.stream));
  group.comms.back()->polls = state().options.polls;
  return ncclInProgress;
}

}  // namespace shardwright::testing::nccl
