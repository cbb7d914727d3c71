// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "exec/comm/connection_advice.h"
#include "exec/communicator.h"
#include "exec/nccl/nccl_error.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

using Clock = std::chrono::steady_clock;

// Most calls are done at once; only connections and first calls take longer.
constexpr std::chrono::microseconds kSpin{200};
constexpr std::chrono::microseconds kNap{100};

}  // namespace

ncclConfig_t NcclGroup::config(const char* name) const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name;
  // The groups' collectives overlap, so they share no channels.
  config.splitShare = 0;
  if (options_.most_ctas > 0) {
    config.maxCTAs = options_.most_ctas;
  } else {
#ifdef NCCL_CTA_POLICY_EFFICIENCY
    config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
#endif
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

}  // namespace shardwright::exec
