// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_communicator.h"

#include <cuda.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <source_location>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "exec/comm/launch_environment.h"
#include "exec/communicator.h"
#include "exec/libraries/rules.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

namespace {

using libraries::rule_number;
using Clock = std::chrono::steady_clock;

// Most calls are done at once; only connections and first calls take longer.
constexpr std::chrono::microseconds kSpin{200};
constexpr std::chrono::microseconds kNap{100};

/// "ncclAllGather failed at nccl_communicator.cc:41: unhandled cuda error (...)". The last message
/// of the library is of `comm`, or of the thread when that is null.
std::string nccl_error_text(ncclResult_t status, const char* call, ncclComm_t comm,
                            const std::source_location& where) {
  std::string_view file = where.file_name();
  file = file.substr(file.rfind('/') + 1);
  const char* last = ncclGetLastError(comm);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(" ({})", last) : "";
  // NCCL names the ranks, not what would be accepted.
  const char* expected = detail.find("Duplicate GPU") != std::string::npos
                             ? "; expected at most one process for each GPU of a machine"
                             : "";
  return fmt::format("{} failed at {}:{}: {}{}{}", call, file, where.line(),
                     ncclGetErrorString(status), detail, expected);
}

/// Throws Error unless the call succeeded or, without blocking, goes on.
void check_nccl(ncclResult_t status, const char* call, ncclComm_t comm = nullptr,
                const std::source_location& where = std::source_location::current()) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw Error(nccl_error_text(status, call, comm, where), ExitCode::kFailed);
}

}  // namespace

ncclConfig_t NcclGroup::config(const char* name) const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name;
  // The groups' collectives overlap, so they share no channels.
  config.splitShare = 0;
  if (options_.most_ctas > 0) {
    config.maxCTAs = options_.most_ctas;
  } else if (options_.few_ctas) {
    config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
  }
  return config;
}

NcclGroup::NcclGroup(int ranks, int rank, const ncclUniqueId& id, const NcclOptions& options,
                     Hopeless hopeless)
    : options_(options), hopeless_(std::move(hopeless)), rank_(rank), ranks_(ranks) {
  ncclConfig_t wish = config("world");
  const ncclResult_t status = ncclCommInitRankConfig(&comm_, ranks, id, rank, &wish);
  try {
    check_nccl(status, "ncclCommInitRankConfig");
    await("ncclCommInitRankConfig", options_.init_timeout_s, kHowConnectionsFail);
  } catch (...) {
    abort();
    throw;
  }
}

NcclGroup::NcclGroup(NcclGroup& parent, int color, int key, const char* name, int most_ctas)
    : options_(parent.options_), hopeless_(parent.hopeless_), ranks_(parent.ranks_) {
  const int allowed = options_.most_ctas;
  if (most_ctas > 0) options_.most_ctas = allowed > 0 ? std::min(allowed, most_ctas) : most_ctas;
  ncclConfig_t wish = config(name);
  try {
    parent.run("ncclCommSplit",
               [&](ncclComm_t comm) { return ncclCommSplit(comm, color, key, &comm_, &wish); });
    await("ncclCommSplit", options_.init_timeout_s, kHowConnectionsFail);
    check_nccl(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank", comm_);
    check_nccl(ncclCommCount(comm_, &ranks_), "ncclCommCount", comm_);
  } catch (...) {
    abort();
    throw;
  }
}

void NcclGroup::split_without() {
  ncclComm_t none = nullptr;
  ncclConfig_t wish = config("none");
  run("ncclCommSplit",
      [&](ncclComm_t comm) { return ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, &wish); });
}

NcclGroup::~NcclGroup() {
  abort();
}

void NcclGroup::await(const char* call, double timeout_s, const char* advice) {
  const auto begin = Clock::now();
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) throw Aborted();
      ncclResult_t state = ncclInProgress;
      check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
      check_nccl(state, call, comm_);
      if (state == ncclSuccess) return;
    }
    const auto waited = Clock::now() - begin;
    if (std::chrono::duration<double>(waited).count() > timeout_s) {
      throw Error(fmt::format("{} is not done after {} s: expected all {} ranks to call it{}{}",
                              call, timeout_s, ranks_, advice == nullptr ? "" : "; ",
                              advice == nullptr ? "" : advice),
                  ExitCode::kFailed);
    }
    if (waited <= kSpin) continue;
    if (hopeless_()) throw Aborted();
    std::this_thread::sleep_for(kNap);
  }
}

void NcclGroup::run(const char* call, const std::function<ncclResult_t(ncclComm_t comm)>& enqueue) {
  ncclResult_t status = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted();
    status = enqueue(comm_);
    check_nccl(status, call, comm_);
  }
  // An event that is recorded now must lie behind the work.
  if (status == ncclInProgress) await(call, options_.call_timeout_s);
}

std::optional<NcclGroup::Failure> NcclGroup::failure() {
  const std::lock_guard lock(mutex_);
  if (aborted_ || comm_ == nullptr) return std::nullopt;
  ncclResult_t state = ncclSuccess;
  ncclResult_t status = ncclCommGetAsyncError(comm_, &state);
  if (status == ncclSuccess) status = state;
  if (status == ncclSuccess || status == ncclInProgress) return std::nullopt;
  return Failure{nccl_error_text(status, "a collective", comm_, std::source_location::current()),
                 status == ncclRemoteError || status == ncclSystemError};
}

void NcclGroup::abort() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  if (comm_ == nullptr) return;
  ncclCommAbort(comm_);
  comm_ = nullptr;
}

bool NcclGroup::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

void NcclGroup::register_memory(void* data, Bytes bytes) {
  if (!options_.registers_memory || bytes == 0) return;
  void* handle = nullptr;
  // Memory that cannot be registered goes through NCCL's own buffers, as without asking.
  run("ncclCommRegister", [&](ncclComm_t comm) {
    const ncclResult_t status =
        ncclCommRegister(comm, data, static_cast<std::size_t>(bytes), &handle);
    return status == ncclInProgress ? status : ncclSuccess;
  });
  if (handle != nullptr) registered_.push_back(handle);
}

std::unique_ptr<Allocation> NcclGroup::allocate(Device& device, Bytes bytes) {
  if (ranks_ == 1 || !options_.registers_memory || bytes == 0) return device.allocate(bytes);
  const auto make = [](Bytes size) {
    void* data = nullptr;
    check_nccl(ncclMemAlloc(&data, static_cast<std::size_t>(size)), "ncclMemAlloc");
    return data;
  };
  auto memory = device.allocate_by({make, [](void* data) { ncclMemFree(data); }}, bytes);
  register_memory(memory->data(), bytes);
  return memory;
}

void NcclGroup::finish() noexcept {
  try {
    run("ncclCommDeregister", [&](ncclComm_t comm) {
      for (void* handle : registered_) ncclCommDeregister(comm, handle);
      registered_.clear();
      return ncclSuccess;
    });
    run("ncclCommFinalize", [](ncclComm_t comm) { return ncclCommFinalize(comm); });
  } catch (const std::exception&) {
    return abort();
  }
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) ncclCommDestroy(comm_);
  comm_ = nullptr;
  aborted_ = true;
}

namespace {

ncclDataType_t type_of(DType dtype) {
  return dtype == DType::kFp32 ? ncclFloat32 : ncclBfloat16;
}

std::size_t count_of(const Array& array) {
  return static_cast<std::size_t>(array.size);
}

bool goes_on(ncclResult_t status) {
  return status == ncclSuccess || status == ncclInProgress;
}

class NcclCommunicator final : public Communicator {
 public:
  /// `seat` is this rank's in the group's rendezvous on the host; `queues` are those of which it is
  /// an end, in one order on all ranks.
  NcclCommunicator(std::shared_ptr<NcclGroup> group, Bootstrap& bootstrap,
                   const BootstrapGroup& seat, Device& device, NativeStreams streams,
                   std::vector<NcclQueue> queues = {})
      : group_(std::move(group)),
        bootstrap_(bootstrap),
        seat_(seat),
        device_(device),
        streams_(std::move(streams)),
        queues_(std::move(queues)) {
    SHARDWRIGHT_CHECK(seat.place == group_->rank() && seat.places == group_->ranks(),
                      "place {} of {} in a group of NCCL with rank {} of {}", seat.place,
                      seat.places, group_->rank(), group_->ranks());
  }

  ~NcclCommunicator() override {
    if (left_) return;
    device_.drain();
    leave();
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->ranks(); }
  /// One rank's sum is what it gives.
  bool ordered() const override { return size() == 1; }

  void all_gather(StreamId stream, Array mine, Array whole) override {
    if (whole.size == 0) return;
    if (even(whole)) {
      return run_on(stream, "ncclAllGather", [&](ncclComm_t comm, cudaStream_t native) {
        return ncclAllGather(mine.data, whole.data, count_of(mine), type_of(whole.dtype), comm,
                             native);
      });
    }
    run_on_shares(stream, "ncclBroadcast", whole, [&](int root, const Array& share, auto... on) {
      return ncclBroadcast(root == rank() ? mine.data : share.data, share.data, count_of(share),
                           type_of(share.dtype), root, on...);
    });
  }

  void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array scratch,
                      SumOrder) override {
    if (whole.size == 0) return;
    if (!adds && mine.dtype == whole.dtype) return reduce_to(stream, whole, mine);
    if (scratch.data == nullptr) scratch = share_of(whole, size(), rank());
    SHARDWRIGHT_CHECK(scratch.dtype == whole.dtype && scratch.size == mine.size,
                      "a scratch of {} {} for {} {}", scratch.size, name_of(scratch.dtype),
                      mine.size, name_of(whole.dtype));
    reduce_to(stream, whole, scratch);
    if (mine.size == 0) return;
    if (adds) {
      device_.accumulate(stream, scratch, mine);
    } else {
      device_.cast(stream, scratch, mine);
    }
  }

  void all_reduce(StreamId stream, Array data, SumOrder) override {
    if (data.size == 0) return;
    run_on(stream, "ncclAllReduce", [&](ncclComm_t comm, cudaStream_t native) {
      return ncclAllReduce(data.data, data.data, count_of(data), type_of(data.dtype), ncclSum, comm,
                           native);
    });
  }

  void broadcast(StreamId stream, Array data, int root) override {
    if (data.size == 0) return;
    run_on(stream, "ncclBroadcast", [&](ncclComm_t comm, cudaStream_t native) {
      return ncclBroadcast(data.data, data.data, count_of(data), type_of(data.dtype), root, comm,
                           native);
    });
  }

  void send(StreamId stream, Array data, int to) override { pass(*group_, stream, data, to, true); }
  void receive(StreamId stream, Array data, int from) override {
    pass(*group_, stream, data, from, false);
  }
  void post(StreamId stream, Array data, int to, int channel) override {
    pass(queue_of(to, channel, true), stream, data);
  }
  void fetch(StreamId stream, Array data, int from, int channel) override {
    pass(queue_of(from, channel, false), stream, data);
  }
  StreamId message_stream(StreamId, int peer, int channel, bool sends) override {
    return queue_of(peer, channel, sends).stream;
  }

  // The first call between two ranks waits on the host for the other's, so all come to their queues
  // in one order.
  void connect_messages(Array data) override {
    for (NcclQueue& queue : queues_) {
      give_stream(queue);
      pass(queue, queue.stream, data);
    }
  }

  std::unique_ptr<Allocation> allocate(Device& device, Bytes bytes) override {
    return group_->allocate(device, bytes);
  }

  void check() override {
    if (group_->aborted() || bootstrap_.failure()) throw Aborted();
  }

  void barrier() override { bootstrap_.exchange(seat_, {}, {}); }

  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
    bootstrap_.exchange(seat_, mine, all);
  }

  void leave() noexcept override {
    if (left_) return;
    left_ = true;
    // A rank that is unwinding waits for nobody: the others hear of it as soon as its error is
    // told.
    const bool fails = std::uncaught_exceptions() > 0;
    fails ? group_->abort() : group_->finish();
    for (const NcclQueue& queue : queues_) fails ? queue.group->abort() : queue.group->finish();
  }

 private:
  /// Enqueues a collective. As the calls of one rank's thread fill the queue that those of the
  /// others need, no host is far ahead of what its stream has done.
  void run_on(StreamId stream, const char* call,
              const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& enqueue) {
    const cudaStream_t native = streams_(stream);
    group_->run(call, [&](ncclComm_t comm) { return enqueue(comm, native); });
    if (size() > 1) device_.limit_run_ahead(stream);
  }

  /// One call(root, share, comm, stream) for each rank that owns some of `whole`, as one operation.
  template <class Call>
  void run_on_shares(StreamId stream, const char* name, const Array& whole, const Call& call) {
    run_on(stream, name, [&](ncclComm_t comm, cudaStream_t native) {
      ncclResult_t status = ncclGroupStart();
      if (status != ncclSuccess) return status;
      for (int root = 0; root < size() && goes_on(status); ++root) {
        const Array share = share_of(whole, size(), root);
        if (share.size > 0) status = call(root, share, comm, native);
      }
      const ncclResult_t ended = ncclGroupEnd();
      return goes_on(status) ? ended : status;
    });
  }

  bool even(const Array& whole) const { return whole.size % size() == 0; }
  void reduce_to(StreamId stream, const Array& whole, const Array& mine) {
    if (even(whole)) {
      return run_on(stream, "ncclReduceScatter", [&](ncclComm_t comm, cudaStream_t native) {
        return ncclReduceScatter(whole.data, mine.data, count_of(mine), type_of(whole.dtype),
                                 ncclSum, comm, native);
      });
    }
    run_on_shares(stream, "ncclReduce", whole, [&](int root, const Array& share, auto... on) {
      return ncclReduce(share.data, root == rank() ? mine.data : nullptr, count_of(share),
                        type_of(share.dtype), ncclSum, root, on...);
    });
  }

  /// That of a message; it has a stream.
  NcclQueue& queue_of(int peer, int channel, bool sends) {
    const MessageQueue wanted{sends ? rank() : peer, sends ? peer : rank(), channel % 2 != 0};
    const auto found = std::find_if(queues_.begin(), queues_.end(),
                                    [&](const NcclQueue& queue) { return queue.which == wanted; });
    SHARDWRIGHT_CHECK(found != queues_.end(), "no queue from rank {} to rank {} for channel {}",
                      wanted.from, wanted.to, channel);
    give_stream(*found);
    return *found;
  }

  void give_stream(NcclQueue& queue) {
    if (queue.stream >= 0) return;
    const bool sends = queue.which.from == rank();
    queue.stream = device_.make_stream(sends ? "pipeline-send" : "pipeline", 0);
  }

  void pass(const NcclQueue& queue, StreamId stream, const Array& data) {
    SHARDWRIGHT_CHECK(stream == queue.stream, "a message on stream {}, expected {}", stream,
                      queue.stream);
    pass(*queue.group, stream, data, 1 - queue.group->rank(), queue.which.from == rank());
  }
  void pass(NcclGroup& group, StreamId stream, const Array& data, int peer, bool sends) {
    const cudaStream_t native = streams_(stream);
    const auto type = type_of(data.dtype);
    group.run(sends ? "ncclSend" : "ncclRecv", [&](ncclComm_t comm) {
      return sends ? ncclSend(data.data, count_of(data), type, peer, comm, native)
                   : ncclRecv(data.data, count_of(data), type, peer, comm, native);
    });
  }

  std::shared_ptr<NcclGroup> group_;
  Bootstrap& bootstrap_;
  BootstrapGroup seat_;
  Device& device_;
  NativeStreams streams_;
  std::vector<NcclQueue> queues_;
  bool left_ = false;
};

}  // namespace

namespace {

constexpr std::uint32_t kWorldChannel = 0;

const char* word_of(CommGroup kind) {
  switch (kind) {
    case CommGroup::kShard:
      return "shard";
    case CommGroup::kReplicate:
      return "replicate";
    case CommGroup::kPipeline:
      return "pipeline";
    default:
      return "tensor";
  }
}

/// Queues without a rank in common are split off at once. In rounds, the first that has room.
std::vector<std::vector<MessageQueue>> rounds_of(const std::vector<MessageQueue>& queues) {
  std::vector<std::vector<MessageQueue>> rounds;
  for (const MessageQueue& queue : queues) {
    const auto meets = [&](const MessageQueue& other) {
      return queue.from == other.from || queue.from == other.to || queue.to == other.from ||
             queue.to == other.to;
    };
    const auto has_room = [&](const std::vector<MessageQueue>& round) {
      return std::none_of(round.begin(), round.end(), meets);
    };
    auto round = std::find_if(rounds.begin(), rounds.end(), has_room);
    if (round == rounds.end()) round = rounds.insert(round, std::vector<MessageQueue>{});
    round->push_back(queue);
  }
  return rounds;
}

/// What ranks tell each other before they have NCCL.
struct Greeting {
  ncclUniqueId id;
  std::int64_t process;
  std::int64_t shares_memory;
};

/// A number that other processes of this and of other machines do not have.
std::int64_t this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::size_t name = std::hash<std::string_view>()(host.data());
  return static_cast<std::int64_t>(name ^ static_cast<std::size_t>(::getpid()) << 40) | 1;
}

/// Whether memory of ncclMemAlloc has a handle that other processes can take: not where the driver
/// or NCCL_CUMEM_ENABLE gives it cudaMalloc's.
bool shares_memory() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kSince = 4000;  // CUDA 4.0 has it
  if (cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &function, kSince,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      function == nullptr) {
    cudaGetLastError();
    return false;
  }
  void* data = nullptr;
  if (ncclMemAlloc(&data, 1) != ncclSuccess) return false;
  unsigned long long kinds = 0;
  const auto get =
      reinterpret_cast<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>(function);
  const bool known = get(&kinds, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                         reinterpret_cast<CUdeviceptr>(data)) == CUDA_SUCCESS;
  ncclMemFree(data);
  return known && (kinds & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
}

/// The rules nccl.registered_memory and nccl.registration_of_threads.
bool nvls_works_on_memory_of(const std::vector<Greeting>& ranks) {
  std::map<std::int64_t, std::int64_t> in_process;
  const std::int64_t most = rule_number("nccl.registration_of_threads", "ranks_of_a_process");
  return std::all_of(ranks.begin(), ranks.end(), [&](const Greeting& rank) {
    return rank.shares_memory != 0 && ++in_process[rank.process] <= most;
  });
}

/// Of the rendezvous: one for each group.
std::uint32_t channel_of(CommGroup kind, std::int64_t first_rank) {
  if (kind == CommGroup::kWorld) return kWorldChannel;
  return (1 + static_cast<std::uint32_t>(kind)) << 24 | static_cast<std::uint32_t>(first_rank);
}

}  // namespace

NcclWorld::NcclWorld(Bootstrap& bootstrap, const NcclOptions& options)
    : bootstrap_(bootstrap), options_(options) {
  Greeting mine{};
  if (bootstrap.rank() == 0) check_nccl(ncclGetUniqueId(&mine.id), "ncclGetUniqueId");
  mine.process = options.process != 0 ? options.process : this_process();
  mine.shares_memory = options.registers_memory && !options.is_deterministic && shares_memory();
  std::vector<Greeting> all(static_cast<std::size_t>(bootstrap.ranks()));
  bootstrap.exchange({kWorldChannel, bootstrap.rank(), bootstrap.ranks()},
                     std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  // What NCCL chooses must be one thing on all ranks.
  options_.few_ctas = nvls_works_on_memory_of(all);
  groups_.push_back(
      std::make_shared<NcclGroup>(bootstrap.ranks(), bootstrap.rank(), all.front().id, options_,
                                  [&bootstrap] { return bootstrap.failure().has_value(); }));
  watcher_ = std::thread([this] { watch(); });
}

NcclWorld::~NcclWorld() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

std::shared_ptr<NcclGroup> NcclWorld::keep(std::shared_ptr<NcclGroup> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
  return group;
}

std::vector<NcclQueue> NcclWorld::make_queues(const std::vector<MessageQueue>& queues,
                                              NcclGroup& group, int rank) {
  std::vector<NcclQueue> mine;
  for (const std::vector<MessageQueue>& round : rounds_of(queues)) {
    const auto own = std::find_if(round.begin(), round.end(), [&](const MessageQueue& queue) {
      return queue.from == rank || queue.to == rank;
    });
    if (own == round.end()) {
      group.split_without();
      continue;
    }
    const char* name = own->backward ? "backward messages" : "forward messages";
    const auto color = static_cast<int>(own - round.begin());
    // A queue waits on the device until its message comes; several do beside a layer's kernels.
    const int most = libraries::message_ctas(options_.most_ctas);
    mine.push_back({*own, keep(std::make_shared<NcclGroup>(group, color, rank, name, most))});
  }
  return mine;
}

RankGroups NcclWorld::groups(const RankMesh& mesh, const std::vector<MessageQueue>& queues,
                             Device& device, const NativeStreams& streams,
                             const OnWorld& on_world) {
  const int rank = bootstrap_.rank();
  const std::shared_ptr<NcclGroup> world = groups_.front();
  const auto make = [&](CommGroup kind, const std::vector<std::int64_t>& members, int place) {
    const auto size = static_cast<int>(members.size());
    const auto first = static_cast<int>(members.front());
    // A group of all ranks is the world: one set of buffers and connections serves both.
    std::shared_ptr<NcclGroup> group = world;
    if (size != bootstrap_.ranks())
      group = keep(std::make_shared<NcclGroup>(*world, first, rank, word_of(kind)));
    std::vector<NcclQueue> mine;
    if (kind == CommGroup::kPipeline) mine = make_queues(queues, *group, place);
    return std::make_unique<NcclCommunicator>(group, bootstrap_,
                                              BootstrapGroup{channel_of(kind, first), place, size},
                                              device, streams, std::move(mine));
  };
  RankGroups groups = make_groups(mesh, rank, on_world, make);
  device.leave_multiprocessors(held_multiprocessors(groups.shard->size()));
  // What failed before the watcher knew of these groups.
  if (bootstrap_.failure()) throw Aborted();
  return groups;
}

int NcclWorld::held_multiprocessors(int shard_ranks) const {
  if (shard_ranks == 1) return 0;
  if (options_.most_ctas > 0 || !options_.few_ctas) return options_.most_ctas;
  const auto most = rule_number("nccl.efficiency_policy", "reduce_channels_blackwell");
  return static_cast<int>((most + shard_ranks - 1) / shard_ranks);
}

std::string NcclWorld::keep_order_of_sums() {
  const std::string rule = libraries::rule_text("nccl.order_of_sums", "off");
  const std::size_t end = rule.find('=');
  const std::string name = rule.substr(0, end), off = rule.substr(end + 1);
  constexpr int kKeepsWhatIsSet = 0;
  ::setenv(name.c_str(), off.c_str(), kKeepsWhatIsSet);
  if (std::getenv(name.c_str()) == off) return "";
  return fmt::format(
      "{} is {}, so sums over ranks may have other bits every time although the plan is "
      "deterministic; expected {} or nothing",
      name, std::getenv(name.c_str()), off);
}

std::string NcclWorld::version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "NCCL";
  return fmt::format("NCCL {}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

bool NcclWorld::look() {
  if (bootstrap_.failure()) return true;
  std::vector<std::shared_ptr<NcclGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
  }
  for (const std::shared_ptr<NcclGroup>& group : groups) {
    const auto failure = group->failure();
    if (!failure) continue;
    const auto begin = std::chrono::steady_clock::now();
    while (failure->remote && !bootstrap_.failure() &&
           std::chrono::steady_clock::now() - begin <
               std::chrono::duration<double>(options_.echo_s)) {
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.watch_s));
    }
    bootstrap_.fail(ExitCode::kFailed, failure->what);
    return true;
  }
  return false;
}

void NcclWorld::abort_all() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<NcclGroup>& group : groups_) group->abort();
}

void NcclWorld::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    const bool failed = look();
    if (failed) abort_all();
    lock.lock();
    if (failed) return;
    changed_.wait_for(lock, std::chrono::duration<double>(options_.watch_s),
                      [this] { return ends_; });
  }
}

}  // namespace shardwright::exec
