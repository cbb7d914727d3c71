// SPDX-License-Identifier: Apache-2.0
#include "exec/failure.h"

#include <utility>

namespace shardwright::exec {

void Failure::keep(std::exception_ptr error, std::int64_t operation) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = std::move(error);
  operation_ = operation;
  failed_.store(true, std::memory_order_release);
}

std::int64_t Failure::operation() const {
  const std::lock_guard lock(mutex_);
  return operation_;
}

void Failure::rethrow() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(error_);
}

}  // namespace shardwright::exec
