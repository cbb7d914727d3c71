// SPDX-License-Identifier: Apache-2.0
// The first failure of a device's operations, from whatever thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

namespace shardwright::exec {

class Failure {
 public:
  /// Keeps the first one, of that operation of the caller's; later ones follow from it.
  void keep(std::exception_ptr error, std::int64_t operation = -1);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// -1: not known.
  std::int64_t operation() const;
  /// Throws the failure if there is one.
  void rethrow() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::int64_t operation_ = -1;
  std::atomic<bool> failed_{false};
};

}  // namespace shardwright::exec
