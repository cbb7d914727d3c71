// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_communicator.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "sim/core/base/check.h"

namespace shardwright::exec {
namespace {

ncclDataType_t type_of(DType dtype) {
  return dtype == DType::kFp32 ? ncclFloat32 : ncclBfloat16;
}

std::size_t count_of(const Array& array) {
  return static_cast<std::size_t>(array.size);
}

/// Several calls as one operation of NCCL.
template <class Calls>
ncclResult_t grouped(Calls&& calls) {
  ncclResult_t status = ncclGroupStart();
  if (status != ncclSuccess) return status;
  status = calls();
  const ncclResult_t ended = ncclGroupEnd();
  return status == ncclSuccess || status == ncclInProgress ? ended : status;
}

bool goes_on(ncclResult_t status) {
  return status == ncclSuccess || status == ncclInProgress;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclGroup> group, Bootstrap& bootstrap,
                                   const BootstrapGroup& seat, Device& device,
                                   NativeStreams streams, std::vector<NcclQueue> queues)
    : group_(std::move(group)),
      bootstrap_(bootstrap),
      seat_(seat),
      device_(device),
      streams_(std::move(streams)),
      queues_(std::move(queues)) {
  SHARDWRIGHT_CHECK(seat.place == group_->rank() && seat.places == group_->ranks(),
                    "place {} of {} in a group of NCCL with rank {} of {}", seat.place, seat.places,
                    group_->rank(), group_->ranks());
}

NcclCommunicator::~NcclCommunicator() {
  if (left_) return;
  device_.drain();
  leave();
}

void NcclCommunicator::all_gather(StreamId stream, Array mine, Array whole) {
  if (whole.size == 0) return;
  const cudaStream_t native = streams_(stream);
  if (even(whole)) {
    return group_->run("ncclAllGather", [&](ncclComm_t comm) {
      return ncclAllGather(mine.data, whole.data, count_of(mine), type_of(whole.dtype), comm,
                           native);
    });
  }
  group_->run("ncclBroadcast", [&](ncclComm_t comm) {
    return grouped([&] {
      ncclResult_t status = ncclSuccess;
      for (int root = 0; root < size() && goes_on(status); ++root) {
        const Array share = share_of(whole, size(), root);
        if (share.size == 0) continue;
        status = ncclBroadcast(root == rank() ? mine.data : share.data, share.data, count_of(share),
                               type_of(share.dtype), root, comm, native);
      }
      return status;
    });
  });
}

void NcclCommunicator::reduce_to(StreamId stream, const Array& whole, const Array& mine) {
  const cudaStream_t native = streams_(stream);
  if (even(whole)) {
    return group_->run("ncclReduceScatter", [&](ncclComm_t comm) {
      return ncclReduceScatter(whole.data, mine.data, count_of(mine), type_of(whole.dtype), ncclSum,
                               comm, native);
    });
  }
  group_->run("ncclReduce", [&](ncclComm_t comm) {
    return grouped([&] {
      ncclResult_t status = ncclSuccess;
      for (int root = 0; root < size() && goes_on(status); ++root) {
        const Array share = share_of(whole, size(), root);
        if (share.size == 0) continue;
        status = ncclReduce(share.data, root == rank() ? mine.data : nullptr, count_of(share),
                            type_of(share.dtype), ncclSum, root, comm, native);
      }
      return status;
    });
  });
}

void NcclCommunicator::reduce_scatter(StreamId stream, Array whole, Array mine, bool adds,
                                      Array scratch, SumOrder) {
  if (whole.size == 0) return;
  if (!adds && mine.dtype == whole.dtype) return reduce_to(stream, whole, mine);
  if (scratch.data == nullptr) scratch = share_of(whole, size(), rank());
  SHARDWRIGHT_CHECK(scratch.dtype == whole.dtype && scratch.size == mine.size,
                    "a scratch of {} {} for {} {}", scratch.size, name_of(scratch.dtype), mine.size,
                    name_of(whole.dtype));
  reduce_to(stream, whole, scratch);
  if (mine.size == 0) return;
  if (adds) {
    device_.accumulate(stream, scratch, mine);
  } else {
    device_.cast(stream, scratch, mine);
  }
}

void NcclCommunicator::all_reduce(StreamId stream, Array data, SumOrder) {
  if (data.size == 0) return;
  const cudaStream_t native = streams_(stream);
  group_->run("ncclAllReduce", [&](ncclComm_t comm) {
    return ncclAllReduce(data.data, data.data, count_of(data), type_of(data.dtype), ncclSum, comm,
                         native);
  });
}

void NcclCommunicator::broadcast(StreamId stream, Array data, int root) {
  if (data.size == 0) return;
  const cudaStream_t native = streams_(stream);
  group_->run("ncclBroadcast", [&](ncclComm_t comm) {
    return ncclBroadcast(data.data, data.data, count_of(data), type_of(data.dtype), root, comm,
                         native);
  });
}

void NcclCommunicator::send(StreamId stream, Array data, int to) {
  const cudaStream_t native = streams_(stream);
  group_->run("ncclSend", [&](ncclComm_t comm) {
    return ncclSend(data.data, count_of(data), type_of(data.dtype), to, comm, native);
  });
}

void NcclCommunicator::receive(StreamId stream, Array data, int from) {
  const cudaStream_t native = streams_(stream);
  group_->run("ncclRecv", [&](ncclComm_t comm) {
    return ncclRecv(data.data, count_of(data), type_of(data.dtype), from, comm, native);
  });
}

void NcclCommunicator::give_stream(NcclQueue& queue) {
  if (queue.stream >= 0) return;
  const bool sends = queue.which.from == rank();
  queue.stream = device_.make_stream(sends ? "pipeline-send" : "pipeline", 0);
}

NcclQueue& NcclCommunicator::queue_of(int peer, int channel, bool sends) {
  const MessageQueue wanted{sends ? rank() : peer, sends ? peer : rank(), channel % 2 != 0};
  const auto found = std::find_if(queues_.begin(), queues_.end(),
                                  [&](const NcclQueue& queue) { return queue.which == wanted; });
  SHARDWRIGHT_CHECK(found != queues_.end(), "no queue from rank {} to rank {} for channel {}",
                    wanted.from, wanted.to, channel);
  give_stream(*found);
  return *found;
}

void NcclCommunicator::pass(const NcclQueue& queue, const Array& data) {
  const cudaStream_t native = streams_(queue.stream);
  const int peer = 1 - queue.group->rank();
  if (queue.which.from == rank()) {
    return queue.group->run("ncclSend", [&](ncclComm_t comm) {
      return ncclSend(data.data, count_of(data), type_of(data.dtype), peer, comm, native);
    });
  }
  queue.group->run("ncclRecv", [&](ncclComm_t comm) {
    return ncclRecv(data.data, count_of(data), type_of(data.dtype), peer, comm, native);
  });
}

void NcclCommunicator::post(StreamId stream, Array data, int to, int channel) {
  const NcclQueue& queue = queue_of(to, channel, true);
  SHARDWRIGHT_CHECK(stream == queue.stream, "a message on stream {}, expected {}", stream,
                    queue.stream);
  pass(queue, data);
}

void NcclCommunicator::fetch(StreamId stream, Array data, int from, int channel) {
  const NcclQueue& queue = queue_of(from, channel, false);
  SHARDWRIGHT_CHECK(stream == queue.stream, "a message on stream {}, expected {}", stream,
                    queue.stream);
  pass(queue, data);
}

StreamId NcclCommunicator::message_stream(StreamId, int peer, int channel, bool sends) {
  return queue_of(peer, channel, sends).stream;
}

// The first call between two ranks waits on the host for the other's, so all come to their queues
// in one order.
void NcclCommunicator::connect_messages(Array data) {
  for (NcclQueue& queue : queues_) {
    give_stream(queue);
    pass(queue, data);
  }
}

void NcclCommunicator::register_memory(void* data, Bytes bytes) {
  group_->register_memory(data, bytes);
}

void NcclCommunicator::check() {
  if (group_->aborted() || bootstrap_.failure()) throw Aborted();
}

void NcclCommunicator::barrier() {
  bootstrap_.exchange(seat_, {}, {});
}

void NcclCommunicator::exchange(std::span<const std::byte> mine, std::span<std::byte> all) {
  bootstrap_.exchange(seat_, mine, all);
}

void NcclCommunicator::leave() noexcept {
  if (left_) return;
  left_ = true;
  // A rank that is unwinding waits for nobody: the others hear of it as soon as its error is told.
  const bool fails = std::uncaught_exceptions() > 0;
  fails ? group_->abort() : group_->finish();
  for (const NcclQueue& queue : queues_) fails ? queue.group->abort() : queue.group->finish();
}

}  // namespace shardwright::exec
