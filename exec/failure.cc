// SPDX-License-Identifier: Apache-2.0
#include "exec/failure.h"

#include <utility>

namespace shardwright::exec {

void Failure::keep(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void Failure::rethrow() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(error_);
}

}  // namespace shardwright::exec
