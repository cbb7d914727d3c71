// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_communicator.h"

#include <exception>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

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
                                   NativeStreams streams)
    : group_(std::move(group)),
      bootstrap_(bootstrap),
      seat_(seat),
      device_(device),
      streams_(std::move(streams)) {
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

void NcclCommunicator::post(StreamId, Array, int, int) {
  throw Error("messages between pipeline stages go through the host only, expected pp 1 on NCCL",
              ExitCode::kMissingDevice);
}

void NcclCommunicator::fetch(StreamId stream, Array data, int from, int channel) {
  post(stream, data, from, channel);
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
  if (std::uncaught_exceptions() > 0) {
    group_->abort();
  } else {
    group_->finish();
  }
}

}  // namespace shardwright::exec
